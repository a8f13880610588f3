"""The steps of an engine and the shards in flight on it: telemetry, tuning, completions. Has no thread of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from specpipe.core import Completion, Evidence, Request, SpeculationPlan, StepReport
from specpipe.pipeline.failures import EngineError
from specpipe.pipeline.messages import EngineGauges, WorkerStatus
from specpipe.pipeline.worker.engine_protocol import EngineProtocol, StoppedEngine
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.step_shares import step_shares
from specpipe.telemetry.timeline_sampler import TimelineSampler

WARM_UP_SHARD = -1
"""Number of the warm-up shard. Its rows run, are discarded, and count in no figure."""


class ShardResult(NamedTuple):
    """Result of a shard's rows."""

    completions: list[Completion]
    """In row order."""
    meter: ShardMeter


@dataclass(slots=True)
class _ShardInFlight:
    """A shard whose rows the engine runs, and its completions so far."""

    expected: int
    """Number of its rows."""
    meter: ShardMeter = field(default_factory=ShardMeter)
    completions: dict[int, Completion] = field(default_factory=dict)
    result: Future[ShardResult] = field(default_factory=Future)

    def report(self) -> None:
        """Completes the future."""
        self.result.set_result(ShardResult([self.completions[row] for row in sorted(self.completions)], self.meter))


class EngineSteps:
    """Runs the rows of shards step by step. `step` has one caller; other methods may be called from any thread.

    The lock guards everything but the step itself.
    """

    def __init__(self, engine: EngineProtocol, sampler: TimelineSampler, tuner: Tuner) -> None:
        self._engine: EngineProtocol = engine
        self._sampler, self._tuner = sampler, tuner
        self._lock = threading.Lock()
        self._failure: EngineError | None = None
        self._in_flight: dict[int, _ShardInFlight] = {}
        self._submissions = 0
        self._step_began = 0.0
        self._totals = EngineTotals()

    def submit(
        self, shard: int, requests: Sequence[Request], plan: SpeculationPlan, priors: PolicyInputs | None
    ) -> Future[ShardResult]:
        """Queues the rows of a shard, at least one. `plan` and `priors` come from the shard order.

        The future fails with EngineError when the engine dies; the method raises it when the engine has died before.
        """
        entry = _ShardInFlight(expected=len(requests))
        with self._lock:
            if self._failure is not None:
                raise self._new_failure()
            if shard in self._in_flight:
                raise ValueError(f"shard {shard} is already in flight on this worker")
            self._engine.submit(requests, self._tuner.order(plan, priors))
            self._in_flight[shard] = entry
            self._submissions += 1
        return entry.result

    def _new_failure(self) -> EngineError:
        """Returns a new exception with the failure of the engine, since each caller raises its own."""
        assert self._failure is not None
        return type(self._failure)(str(self._failure))

    def step(self) -> StepReport | None:
        """Runs one step and hands out what it completed. Returns None when the engine has no row.

        Raises what the engine raises, and RuntimeError when the engine is idle but has not completed a shard.
        """
        submissions = self._submissions
        self._step_began = time.monotonic()
        step = self._engine.step()
        self._step_began = 0.0
        if step is None:
            with self._lock:
                if self._in_flight and self._submissions == submissions:
                    raise RuntimeError(f"the engine is idle but owes rows of shards {sorted(self._in_flight)}")
            return None
        with self._lock:
            self.observe(step)
            ended = [entry for completion in step.completions if (entry := self._complete(completion)) is not None]
        for entry in ended:
            entry.report()
        return step

    def observe(self, step: StepReport) -> None:
        """Adds a step to the telemetry of its shards and to the tuner. The lock is held."""
        shares = step_shares(step)
        for shard, share in shares.items():
            if (entry := self._in_flight.get(shard)) is not None:
                entry.meter.add_step(step, share)
        for shard, part in step.shards.items():
            if (entry := self._in_flight.get(shard)) is not None:
                entry.meter.add_round(step, part, self._tuner.plan)
        if not shares.keys() <= {WARM_UP_SHARD}:
            self._tune(step)
            self._totals.add(step)

    def _tune(self, step: StepReport) -> None:
        applied, new_plan = self._tuner.plan, self._tuner.step(step)
        self._sampler.add(step, plan=applied, queue_depth=self._tuner.queue_depth, now=time.time())
        if new_plan is not None:
            self._engine.submit([], new_plan)

    def _complete(self, completion: Completion) -> _ShardInFlight | None:
        """Adds a completion. Returns its shard if that was the last row."""
        shard = completion.request.shard
        entry = self._in_flight[shard]
        entry.completions[completion.request.row] = completion
        entry.meter.add_completion(completion)
        return self._in_flight.pop(shard) if len(entry.completions) == entry.expected else None

    def fail(self, failure: EngineError) -> None:
        """Fails all shards in flight and frees the engine."""
        with self._lock:
            self._failure, self._engine = failure, StoppedEngine()
            self._step_began = 0.0
            failed, self._in_flight = self._in_flight, {}
        for entry in failed.values():
            entry.result.set_exception(self._new_failure())

    def status(self, *, after: int, final: bool = False) -> WorkerStatus:
        """Returns counters, and the timeline intervals that began after Unix second `after`.

        `final`: with the interval that is not over.
        """
        with self._lock:
            verified = self._totals.verified
            return WorkerStatus(
                running=self._engine.running,
                waiting=self._engine.waiting,
                k=self._totals.k,
                rows_done=self._totals.rows,
                input_tokens=self._totals.input_tokens,
                output_tokens=self._totals.output_tokens + self._totals.scored_tokens,
                drafts=verified.drafts,
                accepted_tokens=verified.accepted_tokens,
                in_step_s=self._in_step_s(),
                samples=tuple(self._sampler.since(after, now=math.inf if final else time.time())),
                evidence=self._tuner.evidence(),
            )

    def evidence(self) -> Evidence:
        """Returns the measurements since they were last taken, here or by `status`."""
        with self._lock:
            return self._tuner.evidence()

    def totals(self) -> EngineTotals:
        """Returns sums over all steps so far, without warm-up."""
        with self._lock:
            return self._totals.copy()

    def gauges(self) -> EngineGauges:
        """Returns the current state of the engine."""
        with self._lock:
            return EngineGauges(
                queue_depth=self._tuner.queue_depth,
                running_rows=self._engine.running,
                waiting_rows=self._engine.waiting,
                slots=self._engine.config.slots,
                kv_pages_used=self._engine.kv_pages_used,
                kv_pages=self._engine.kv_pages,
                step_seconds=self._in_step_s(),
            )

    def _in_step_s(self) -> float:
        return time.monotonic() - self._step_began if self._step_began else 0.0
