"""How many workers a cluster holds, and what each gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpipe.core import DeviceName, resolve_device
from specpipe.errors import MachineError
from specpipe.job import JobSpec, WorkerRange


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
    device = resolve_device(job.model.device, gpus=gpus)
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
