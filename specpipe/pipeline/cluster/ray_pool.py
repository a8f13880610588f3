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

_THREADS = MAX_SHARDS_IN_FLIGHT + 4  # status, and room
_RAY_IDS = re.compile(r"(class_name|actor_id|pid|name|namespace|ip): ")
_LONGEST = 400  # characters of what Ray says about a death
_STDERR = 2  # Ray's log of the worker; its sys.stderr need not be a file


class _Actor(Worker):
    """Exports metrics; leaves its stacks in Ray's log when it answers nobody any more, as in native code that holds
    the GIL."""

    def __init__(self, name: str, config: WorkerConfig, *, json_logs: bool) -> None:
        super().__init__(name, config)
        self._labels = {"run": run_label(config.job.name, config.run_id), "worker": name}
        if json_logs:
            log_as_json(**self._labels)

    def start(self, warm_up: ShardOrder | None) -> WorkerInfo:
        info = super().start(warm_up)
        export_every_second(Exporter(**self._labels), self._values)
        return info

    def _values(self) -> Iterator[Value]:
        measured = self.measured()
        return iter(()) if measured is None else worker_values(*measured)

    def status(self, after: int, final: bool = False) -> WorkerStatus:
        faulthandler.dump_traceback_later(self._config.stall_s, file=_STDERR)
        return super().status(after, final)


class RayPool:
    """Spawns actors; the configuration is stored once, whatever the number of workers."""

    def __init__(self, config: WorkerConfig, *, cpus: float, gpus: int, json_logs: bool = False) -> None:
        self._config, self._json_logs = ray.put(config), json_logs
        self._actor_class = ray.remote(_Actor).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=_THREADS,
            max_restarts=0,  # a replacement gets a new name, so that late messages of the dead are told apart
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )

    def spawn(self, name: str) -> ActorHandle:
        return ActorHandle(name, self._actor_class.remote(name, self._config, json_logs=self._json_logs))


class ActorHandle:
    """A worker actor from afar."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name, self._actor = name, actor

    @property
    def name(self) -> str:
        return self._name

    def placed(self) -> Future[None]:
        return self._call(self._actor.__ray_ready__)

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        return self._call(self._actor.start, warm_up)

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        return self._call(self._actor.run_shard, order)

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        return self._call(self._actor.status, after, final)

    def stop(self) -> None:
        with suppress(RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    def _call(self, method: Any, *arguments: object) -> Future[Any]:
        out: Future[Any] = Future()
        try:
            inner: Future[Any] = method.remote(*arguments).future()
        except RayError as error:
            out.set_exception(_ours(error))
            return out
        inner.add_done_callback(_settle(out))
        return out


def _settle(out: Future[Any]) -> Callable[[Future[Any]], None]:
    def settle(inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            out.set_result(inner.result())
        else:
            out.set_exception(_ours(error))

    return settle


def _ours(error: BaseException) -> SpecpipeError:
    """What the worker raised, as it raised it; EngineError when there is no worker any more."""
    cause = getattr(error, "cause", None)
    if isinstance(error, RayTaskError):
        return cause if isinstance(cause, SpecpipeError) else SpecpipeError(f"{type(cause).__name__}: {cause}")
    lines = [line.strip() for line in str(error).splitlines()]
    said = " ".join(line for line in lines if line and not _RAY_IDS.match(line))
    said = said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"
    return EngineError(f"the worker's process died ({type(error).__name__}: {said})")
