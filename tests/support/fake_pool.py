"""Fake workers in this process, for tests of the driver."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from specpipe.core import AcceptanceCounts, Evidence, Shard, ShardReport
from specpipe.job.workers_section import WorkersSection
from specpipe.pipeline.driver.config import DriverConfig, Observers
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.messages import ShardOrder, WorkerInfo, WorkerStatus


def driver_config(
    *, workers: int = 1, slots: int = 4, max_attempts: int = 3, stall_seconds: float = 900.0, **config: Any
) -> DriverConfig:
    """Settings of the job's workers, and of the driver."""
    settings = WorkersSection(slots=slots, max_attempts=max_attempts, stall_seconds=stall_seconds)
    return DriverConfig(workers=workers, settings=settings, **config)


IDLE = WorkerStatus(
    running=0, waiting=0, k=0, rows_done=0, input_tokens=0, output_tokens=0, drafts=0, accepted_tokens=0,
    in_step_s=0.0, samples=(),
)  # fmt: skip


def shards(count: int, rows: int = 10) -> list[Shard]:
    return [
        Shard(index=i, file="data.jsonl", start=i * rows, stop=(i + 1) * rows, first_row=i * rows) for i in range(count)
    ]


VERIFIED = AcceptanceCounts(drafts=1, reached_per_position=(1,), draft_tokens=3, accepted_tokens=2)


def report(order: ShardOrder, worker: str) -> ShardReport:
    return ShardReport(
        shard=order.shard.index, attempt=order.attempt, worker=worker, rows=order.shard.rows, failed_rows=0,
        part=f"part-{order.shard.index:05d}.parquet", telemetry={},
        verified=VERIFIED,
        evidence=Evidence(verified={"draft": VERIFIED}),
    )  # fmt: skip


def at_once() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


class FakeWorker:
    """`behave(worker, order)` returns a report or raises; it runs on the pool's threads, in the order of dispatch."""

    def __init__(self, name: str, pool: FakePool) -> None:
        self.name = name
        self.stopped = False
        self.in_flight: list[int] = []
        self._pool = pool

    def placed(self) -> Future[None]:
        return self._pool.on_place(self)

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        self._pool.warm_ups.append(warm_up)
        return self._pool.executor.submit(self._pool.on_start, self)

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        self.in_flight.append(order.shard.index)
        self._pool.orders.append((self.name, order, tuple(self.in_flight)))
        return self._pool.executor.submit(self._run, order)

    def _run(self, order: ShardOrder) -> ShardReport:
        try:
            return self._pool.behave(self, order)
        finally:
            self.in_flight.remove(order.shard.index)

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        future: Future[WorkerStatus] = Future()
        if (status := self._pool.on_status(self)) is not None:
            future.set_result(status)
        return future

    def stop(self) -> None:
        self.stopped = True


class FakePool:
    def __init__(
        self,
        behave: Callable[[FakeWorker, ShardOrder], ShardReport] = lambda worker, order: report(order, worker.name),
        *,
        on_start: Callable[[FakeWorker], WorkerInfo] = lambda worker: WorkerInfo(facts={}),
        on_status: Callable[[FakeWorker], WorkerStatus | None] = lambda worker: IDLE,
        on_place: Callable[[FakeWorker], Future[None]] = lambda worker: at_once(),
        threads: int = 1,
    ) -> None:
        self.behave, self.on_start, self.on_status, self.on_place = behave, on_start, on_status, on_place
        self.executor = ThreadPoolExecutor(threads)
        self.workers: list[FakeWorker] = []
        self.orders: list[tuple[str, ShardOrder, tuple[int, ...]]] = []
        self.warm_ups: list[ShardOrder | None] = []
        self.gate = threading.Event()
        """Event for behaviours that wait."""

    def spawn(self, name: str) -> FakeWorker:
        self.workers.append(FakeWorker(name, self))
        return self.workers[-1]


class RecordingDriver(Driver):
    """A driver that keeps its reports."""

    def __init__(self, *args: Any, observers: Observers | None = None, **options: Any) -> None:
        self.reports: list[ShardReport] = []
        observers = dataclasses.replace(observers or Observers(), published=self.reports.append)
        super().__init__(*args, observers=observers, **options)

    @property
    def published(self) -> list[int]:
        """Shard numbers."""
        return sorted(report.shard for report in self.reports)
