"""Shards of requests on one engine, with a run's driver and worker steps but without Ray, files or threads.

Benchmarks and the simulator use it, so that policies meet there the same loop as in a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from specpipe.core import Profile, Request, Shard, ShardReport, StepReport
from specpipe.job.workers_section import WorkersSection
from specpipe.pipeline.driver.config import DriverConfig
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.driver.event_queue import EventQueue
from specpipe.pipeline.messages import ShardOrder, WorkerHandle, WorkerInfo, WorkerStatus
from specpipe.pipeline.worker.engine_steps import EngineSteps, ShardResult
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.policy import Policy

T = TypeVar("T")
_NAME = "engine"


class OneEngine:
    """An engine with policy, estimates and tuner, which are kept from one `run` to the next."""

    def __init__(
        self,
        steps: EngineSteps,
        policy: Policy,
        estimates: RunEstimates,
        *,
        slots: int,
        profile: Profile | None = None,
        now: Callable[[], float] = time.monotonic,
        poll_s: float = 1.0,
        on_step: Callable[[StepReport], None] = lambda step: None,
        may_arrive: Callable[[], bool] = lambda: True,
    ) -> None:
        """steps: those of the engine, with the worker's policy. policy: the driver's. slots: of the engine.

        profile: rounds timed before the first row. now: seconds of a clock that never goes back. poll_s: seconds
        between two status requests. on_step: receives every step. may_arrive: returns False while a shard that was
        sent is still being read.
        """
        self._steps, self._policy, self._estimates = steps, policy, estimates
        self._config = DriverConfig(workers=1, settings=WorkersSection(slots=slots), poll_s=poll_s)
        self._profile = profile or Profile()
        self._now, self._on_step, self._may_arrive = now, on_step, may_arrive
        self._arriving: deque[Callable[[], None]] = deque()

    def run(self, shards: Sequence[Sequence[Request]]) -> None:
        """Runs all rows of the shards and returns when the last one has ended. Raises what the engine raises."""
        rows = {index: requests for index, requests in enumerate(shards)}
        handle = _Handle(self, rows, WorkerInfo(facts={"device": _NAME}, profile=self._profile))
        self._profile = Profile()  # the estimates have it from now on
        Driver(
            [Shard(index=i, file="", start=0, stop=len(some), first_row=0) for i, some in rows.items()],
            handle,
            self._policy,
            self._config,
            estimates=self._estimates,
            events=_SteppingEvents(self.step, self._now),
        ).run()
        while self.step():  # an engine that runs one round behind has one more round, without rows
            pass

    def step(self) -> bool:
        """Submits the shards that have arrived and runs one step. Returns False when the engine has no row."""
        while self._arriving and self._may_arrive():
            self._arriving.popleft()()
        step = self._steps.step()
        if step is not None:
            self._on_step(step)
        return step is not None

    def submit(self, order: ShardOrder, requests: Sequence[Request]) -> Future[ShardReport]:
        """Queues a shard's rows until they may arrive."""
        report: Future[ShardReport] = Future()
        self._arriving.append(partial(self._arrive, order, requests, report))
        return report

    def _arrive(self, order: ShardOrder, requests: Sequence[Request], report: Future[ShardReport]) -> None:
        result = self._steps.submit(order.shard.index, requests, order.plan, order.priors)
        result.add_done_callback(lambda done: report.set_result(self._report(order, done.result())))

    def _report(self, order: ShardOrder, result: ShardResult) -> ShardReport:
        return ShardReport(
            shard=order.shard.index,
            attempt=order.attempt,
            worker=_NAME,
            rows=len(result.completions),
            failed_rows=sum(row.finish_reason == "error" for row in result.completions),
            part="",
            telemetry={},
            evidence=self._steps.evidence(),
        )

    def status(self, after: int, final: bool) -> WorkerStatus:
        """Returns the state of the engine."""
        return self._steps.status(after=after, final=final)


class _Handle:
    """The engine as a worker, and as a pool of this one worker."""

    def __init__(self, engine: OneEngine, rows: dict[int, Sequence[Request]], info: WorkerInfo) -> None:
        self._engine, self._rows, self._info = engine, rows, info
        self.name = ""

    def spawn(self, name: str) -> WorkerHandle:
        self.name = name
        return self

    def placed(self) -> Future[None]:
        return _done(None)

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        return _done(self._info)

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        return self._engine.submit(order, self._rows[order.shard.index])

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        return _done(self._engine.status(after, final))

    def stop(self) -> None:
        """Does nothing: the engine stays."""


class _SteppingEvents(EventQueue):
    """Steps the engine while the driver waits for events."""

    def __init__(self, step: Callable[[], bool], now: Callable[[], float]) -> None:
        super().__init__()
        self._step, self._now = step, now

    def now(self) -> float:
        """Returns the seconds of the engine's clock."""
        return self._now()

    def run(self, *, until: float) -> None:
        """Runs steps until there are events or the clock reaches `until`, then all queued callbacks."""
        while self._events.empty() and self._now() < until and self._step():
            pass
        super().run(until=self._now())


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
