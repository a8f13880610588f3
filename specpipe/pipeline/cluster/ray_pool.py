"""Workers as Ray actors."""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from specpipe.core import MAX_SHARDS_IN_FLIGHT, ShardReport
from specpipe.errors import SpecpipeError
from specpipe.pipeline.cluster.metrics_export import Exporter, Value, export_every_second, worker_values
from specpipe.pipeline.failures import EngineError
from specpipe.pipeline.logs import log_as_json
from specpipe.pipeline.messages import ShardOrder, WorkerInfo, WorkerStatus
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.pipeline.worker.worker import Worker
from specpipe.telemetry.metrics import run_label

_ACTOR_THREADS = MAX_SHARDS_IN_FLIGHT + 4  # one per shard, and some for status requests
# What Ray says where its memory monitor, or the kernel, killed a process.
_KILLED = ("OutOfMemory", "OOM", "SIGKILL", "out of memory")
_RAY_IDS = re.compile(r"(class_name|actor_id|pid|name|namespace|ip): ")
_MAX_REASON = 400  # characters of Ray's text about a death
_STDERR = 2  # file descriptor of Ray's log of the worker; its sys.stderr need not be a file


class ExportingWorker(Worker):
    """A worker that exports metrics, and that logs its stacks when it stops answering status requests.

    It stops answering when native code hangs while it holds the GIL.
    """

    def __init__(self, name: str, config: WorkerConfig, *, json_logs: bool) -> None:
        super().__init__(name, config)
        self._labels = {"run": run_label(config.job.name, config.run_id), "worker": name}
        if json_logs:
            log_as_json(**self._labels)

    def start(self, warm_up: ShardOrder | None) -> WorkerInfo:
        """Starts the worker, then the export of its metrics."""
        info = super().start(warm_up)
        export_every_second(Exporter(**self._labels), self._values)
        return info

    def _values(self) -> Iterator[Value]:
        measured = self.measured()
        return iter(()) if measured is None else worker_values(*measured)

    def status(self, after: int, final: bool = False) -> WorkerStatus:
        """Returns the status, and schedules a dump of all stacks for when no further request is answered."""
        faulthandler.dump_traceback_later(self._config.stall_s, file=_STDERR)
        return super().status(after, final)


class RayPool:
    """Spawns worker actors. The configuration is stored in Ray once, whatever the number of workers."""

    def __init__(self, config: WorkerConfig, *, cpus: float, gpus: int, json_logs: bool = False) -> None:
        self._config, self._json_logs = ray.put(config), json_logs
        self._actor_class = ray.remote(ExportingWorker).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=_ACTOR_THREADS,
            max_restarts=0,  # a replacement gets a new name, by which late messages of the dead worker are recognised
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )

    def spawn(self, name: str) -> ActorHandle:
        """Requests an actor and returns its handle without waiting."""
        return ActorHandle(name, self._actor_class.remote(name, self._config, json_logs=self._json_logs))


class ActorHandle:
    """Remote handle of a worker actor; see WorkerHandle."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name, self._actor = name, actor

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self._name

    def placed(self) -> Future[None]:
        """Completes when Ray has created the actor."""
        return self._call(self._actor.__ray_ready__)

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        """Calls `Worker.start`."""
        return self._call(self._actor.start, warm_up)

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        """Calls `Worker.run_shard`."""
        return self._call(self._actor.run_shard, order)

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        """Calls `Worker.status`."""
        return self._call(self._actor.status, after, final)

    def stop(self) -> None:
        """Kills the actor."""
        with suppress(RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    def _call(self, method: Any, *arguments: object) -> Future[Any]:
        """Calls a method of the actor. The future fails with a SpecpipeError only."""
        out: Future[Any] = Future()
        try:
            inner: Future[Any] = method.remote(*arguments).future()
        except RayError as error:
            out.set_exception(_specpipe_error(error))
            return out
        inner.add_done_callback(_copy_result_to(out))
        return out


def _copy_result_to(out: Future[Any]) -> Callable[[Future[Any]], None]:
    def copy(inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            out.set_result(inner.result())
        else:
            out.set_exception(_specpipe_error(error))

    return copy


def _specpipe_error(error: BaseException) -> SpecpipeError:
    """Returns the error that the worker raised; EngineError when its process is gone."""
    cause = getattr(error, "cause", None)
    if isinstance(error, RayTaskError):
        return cause if isinstance(cause, SpecpipeError) else SpecpipeError(f"{type(cause).__name__}: {cause}")
    lines = [line.strip() for line in str(error).splitlines()]
    reason = " ".join(line for line in lines if line and not _RAY_IDS.match(line))
    reason = reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 1]}…"
    killed = any(words in f"{type(error).__name__} {error}" for words in _KILLED)
    remedy = "; if it ran out of memory, lower workers.slots or model.max_model_len" if killed else ""
    return EngineError(f"the worker's process died ({type(error).__name__}: {reason}){remedy}")
