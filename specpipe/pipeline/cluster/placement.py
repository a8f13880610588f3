"""Placement: the number of workers that a cluster can run, and the resources of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpipe.core import DeviceName, resolve_device
from specpipe.errors import MachineError
from specpipe.job import JobSpec, WorkerRange


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Workers of a run and the resources of each."""

    workers: int
    """Number of workers to request."""
    device: DeviceName
    cpus: float
    """CPUs that Ray reserves for a worker."""
    elastic: bool = False
    """Workers may run on other machines than this one."""
    logs: str = ""
    """Folder of the workers' logs, on every machine that runs workers; empty for backends without such logs."""

    @property
    def threads(self) -> int:
        """CPU threads of torch in a worker."""
        return max(1, int(self.cpus))

    @property
    def gpus(self) -> int:
        """GPUs of a worker."""
        return int(self.device == "cuda")


def place(
    job: JobSpec, *, cpus: float, gpus: float, elastic: bool, machines: Sequence[float] | None = None
) -> Placement:
    """Returns the placement on a cluster of so many CPUs and GPUs.

    `elastic`: the cluster may grow, so that more may be requested than it has. `machines`: CPUs of each machine, where
    there are several.

    Raises MachineError when the cluster can never provide what the job requests.
    """
    if job.model.device == "cuda" and not gpus and not elastic:
        raise MachineError("model.device is cuda and Ray sees no GPU here; set model.device: cpu, or repair the driver")
    device = resolve_device(job.model.device, gpus=gpus)
    if device == "cuda":
        workers, share = _workers_on_gpus(job, int(gpus), elastic=elastic), 1.0
    else:
        workers = _workers_on_cpus(job, cpus, elastic=elastic)
        share = _share(machines or [cpus], workers)
    per_worker = share if job.workers.cpus_per_worker == "auto" else job.workers.cpus_per_worker
    if not elastic and per_worker * workers > cpus:
        raise MachineError(
            f"{workers} worker(s) with {per_worker:g} CPUs each need more than the {cpus:g} of this machine. Lower "
            "workers.count or workers.cpus_per_worker"
        )
    return Placement(workers=workers, device=device, cpus=per_worker, elastic=elastic)


def _workers_on_gpus(job: JobSpec, gpus: int, *, elastic: bool) -> int:
    count = job.workers.count
    if isinstance(count, WorkerRange):
        return _within(count, gpus, "GPU(s)", elastic=elastic)
    workers = max(1, gpus) if count == "auto" else count
    if workers > gpus and not elastic:
        raise MachineError(
            f"workers.count is {workers} and this machine has {gpus} GPU(s); a worker needs one of its own. "
            "Set workers.count: auto"
        )
    return workers


def _workers_on_cpus(job: JobSpec, cpus: float, *, elastic: bool) -> int:
    count = job.workers.count
    if isinstance(count, WorkerRange):
        each = 1.0 if job.workers.cpus_per_worker == "auto" else job.workers.cpus_per_worker
        return _within(count, int(cpus / each), "worker(s) by its CPUs", elastic=elastic)
    return 1 if count == "auto" else count


def _share(machines: Sequence[float], workers: int) -> float:
    """Returns the CPUs of each worker: the largest whole number at which all fit. No worker spans two machines."""
    for share in range(int(max(machines)), 0, -1):
        if sum(cpus // share for cpus in machines) >= workers:
            return float(share)
    return sum(machines) / workers


def _within(count: WorkerRange, room: int, what: str, *, elastic: bool) -> int:
    """Returns the number of workers to request: the maximum, or what fits into a cluster that cannot grow."""
    if room < count.min:
        raise MachineError(
            f"workers.count.min is {count.min} and there is room for {room} {what}. Lower it, or start the run when "
            "there is more room"
        )
    return count.max if elastic else min(count.max, room)
