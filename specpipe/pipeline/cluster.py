"""Ray: a quiet cluster in this machine by default, or the one that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from specpipe.errors import MachineError
from specpipe.job import JobSpec, WorkerRange
from specpipe.pipeline.assemble import DeviceName, WorkerConfig
from specpipe.pipeline.handles import Pool
from specpipe.pipeline.interrupts import hold_interrupts
from specpipe.pipeline.metrics import Exporter, run_values
from specpipe.pipeline.progress import Progress
from specpipe.telemetry.metrics import run_label

log = logging.getLogger(__name__)
_KNOCK_S = 5.0
_ADVICE = (
    ". If the cluster is up: RAY_AUTH_MODE, the token (RAY_AUTH_TOKEN or ~/.ray/auth_token) and Ray's version must be "
    "the same here as there"
)
_OBJECT_STORE = 100 * 2**20  # only small messages cross Ray


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """How many workers, and what each gets."""

    workers: int
    device: DeviceName
    cpus: float
    """CPUs that Ray sets aside for a worker."""
    logs: str = ""
    """Folder of the workers' logs, on each machine that runs some; empty where they have none of their own."""

    @property
    def threads(self) -> int:
        """CPU threads of torch in a worker."""
        return max(1, int(self.cpus))

    @property
    def gpus(self) -> int:
        return int(self.device == "cuda")


def place(
    job: JobSpec, *, cpus: float, gpus: float, elastic: bool, machines: Sequence[float] | None = None
) -> Placement:
    """Workers for a cluster of so many CPUs and GPUs. `elastic`: it may grow, so asking for more than it has is fine.
    `machines`: CPUs of each machine, where there are several.

    Raises MachineError for what the cluster can never give.
    """
    count = job.workers.count
    wanted = count.max if isinstance(count, WorkerRange) else count
    if job.model.device == "cuda" and not gpus and not elastic:
        raise MachineError("model.device is cuda and Ray sees no GPU here; set model.device: cpu, or mend the driver")
    device: DeviceName = "cuda" if job.model.device != "cpu" and (gpus or job.model.device == "cuda") else "cpu"
    if device == "cuda":
        workers = max(1, int(gpus)) if wanted == "auto" else wanted
        if isinstance(count, WorkerRange):
            workers = _within(count, int(gpus), "GPU(s)", elastic=elastic)
        if workers > gpus and not elastic:
            raise MachineError(
                f"workers.count is {workers} and this machine has {int(gpus)} GPU(s); a worker needs one of its own. "
                "Set workers.count: auto"
            )
        share = 1.0
    else:
        workers = 1 if wanted == "auto" else wanted
        if isinstance(count, WorkerRange):
            each = 1.0 if job.workers.cpus_per_worker == "auto" else job.workers.cpus_per_worker
            workers = _within(count, int(cpus / each), "worker(s) by its CPUs", elastic=elastic)
        share = _share(machines or [cpus], workers)
    per_worker = share if job.workers.cpus_per_worker == "auto" else job.workers.cpus_per_worker
    if not elastic and per_worker * workers > cpus:
        raise MachineError(
            f"{workers} worker(s) with {per_worker:g} CPUs each need more than the {cpus:g} of this machine. Lower "
            "workers.count or workers.cpus_per_worker"
        )
    return Placement(workers=workers, device=device, cpus=per_worker)


def _share(machines: Sequence[float], workers: int) -> float:
    """CPUs of each of so many workers: as many as find room side by side, for none spreads over two machines."""
    for share in range(int(max(machines)), 0, -1):
        if sum(cpus // share for cpus in machines) >= workers:
            return float(share)
    return sum(machines) / workers


def _within(count: WorkerRange, room: int, what: str, *, elastic: bool) -> int:
    """Workers to ask for: the most, of which a machine that cannot grow gives what it has."""
    if room < count.min:
        raise MachineError(
            f"workers.count.min is {count.min} and there is room for {room} {what}. Lower it, or start the run when "
            "there is more"
        )
    return count.max if elastic else min(count.max, room)


class Backend(Protocol):
    """Where workers run."""

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        """Resources for this job, for as long as the block lasts."""

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool: ...

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Who is told how the run goes, beside the user."""


@dataclass(frozen=True, slots=True)
class RayBackend:
    """Ray actors."""

    verbose: bool = False
    """Show the workers' and Ray's own logs."""
    json_logs: bool = False
    """Workers log JSON, to Ray's logs alone: shown here, each line would have Ray's words before it."""

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        return connected(job, verbose=self.verbose and not self.json_logs)

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        from specpipe.pipeline.ray_pool import RayPool

        return RayPool(config, gpus=placement.gpus, cpus=placement.cpus, json_logs=self.json_logs)

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Metrics of the run, on Ray's Prometheus endpoint."""
        exporter = Exporter(run=run_label(config.job.name, config.run_id))
        return lambda progress: exporter.show(run_values(progress))


@contextmanager
def connected(job: JobSpec, *, verbose: bool) -> Iterator[Placement]:
    """Ray, for as long as the block lasts; one that is there already is used and left alone.

    Nothing of the environment goes into a runtime_env: a dashboard would show the secrets in it.
    """
    import ray

    ours = not ray.is_initialized()
    address = os.environ.get("RAY_ADDRESS")
    logs = ""
    try:
        if ours:
            with hold_interrupts():
                logs = _start(address, verbose=verbose)
            log.info("workers log to %s", logs)
        have = ray.cluster_resources()
        machines = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        cpus, gpus = have.get("CPU", 1.0), have.get("GPU", 0.0)
        placement = place(job, cpus=cpus, gpus=gpus, elastic=bool(address), machines=machines)
        yield replace(placement, logs=logs)
    finally:
        if ours:
            ray.shutdown()


def _start(address: str | None, *, verbose: bool) -> str:
    """→ the folder of Ray's logs."""
    import ray

    # A worker that gets no GPU keeps seeing the machine's environment as it is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of the workers, whose threads take turns with shards: each would keep some 6 MB of Arrow's own, and a heap.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("MALLOC_ARENA_MAX", "4")
    level = logging.INFO if verbose else logging.ERROR
    advice = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if address:
                _knock(address)
                advice = _ADVICE
                context = ray.init(address=address, log_to_driver=verbose, logging_level=level)
            else:
                context = ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=verbose,
                    logging_level=level,
                    object_store_memory=_OBJECT_STORE,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"RAY_ADDRESS={address}" if address else "this machine"
            raise MachineError(f"Ray cannot be reached or started ({where}): {error}{advice}") from error
    return os.path.join(context.address_info["session_dir"], "logs")


def _knock(address: str) -> None:
    """Raises OSError when nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
