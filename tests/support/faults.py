"""Faults on request: an engine of a Ray worker that dies, hangs or runs out of memory when a file appears."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from support.fake_engine import FakeEngine
from support.fake_workers import fake_parts
from support.ray_workers import RayWorkers

from specpipe.core import StepReport
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's error."""


def strike(fault: str) -> None:
    """Applies a fault to this process."""
    if fault == "kill":  # also what the kernel does when host memory runs out
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "exit":
        os._exit(1)
    if fault == "hang":
        time.sleep(3600)
    if fault == "oom":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class FaultyEngine(FakeEngine):
    """Looks for fault files before each step; each file applies to one engine, once."""

    def __init__(self, engine: FakeEngine, orders: Path, step_s: float) -> None:
        super().__init__(engine.config, step_s=step_s)
        self._orders = orders

    def step(self) -> StepReport | None:
        for order in os.listdir(self._orders) if self.running else ():
            with suppress(FileNotFoundError):
                os.unlink(self._orders / order)
                strike(order.partition("-")[0])
        self.starts.clear()  # notes for tests in one process: 100 bytes a row would look like a leak
        self.seen_ks.clear()
        return super().step()


def faulty_parts(config: WorkerConfig, *, orders: str, step_s: float) -> WorkerParts:
    parts = fake_parts(config)
    (Path(orders).parent / "pids" / str(os.getpid())).touch()
    return WorkerParts(
        engine=FaultyEngine(parts.engine, Path(orders), step_s), builder=parts.builder, facts=parts.facts
    )


class FaultyBackend(RayWorkers):
    """Ray workers with faulty engines. `order("kill")` applies to the worker that steps next."""

    def __init__(self, folder: Path, *, step_s: float = 0.02) -> None:
        super().__init__(partial(faulty_parts, orders=str(folder / "orders"), step_s=step_s))
        self._folder, self._count = folder, 0
        for name in ("orders", "pids"):
            (folder / name).mkdir(exist_ok=True)

    def order(self, fault: str) -> None:
        self._count += 1
        (self._folder / "orders" / f"{fault}-{self._count}").touch()

    @property
    def struck(self) -> int:
        """Number of faults that were applied."""
        return self._count - len(os.listdir(self._folder / "orders"))

    @property
    def pids(self) -> list[int]:
        """Process ids of all workers that were ever built."""
        return [int(name) for name in os.listdir(self._folder / "pids")]
