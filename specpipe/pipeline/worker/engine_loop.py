"""The thread that steps an engine while shards wait for their rows."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from specpipe.core import Completion, Evidence, Request, SpeculationPlan, StepReport
from specpipe.pipeline.failures import EngineError, MemoryFailure, is_out_of_memory
from specpipe.pipeline.messages import EngineGauges, WorkerStatus
from specpipe.pipeline.worker.engine_protocol import EngineProtocol, StoppedEngine
from specpipe.speculation.estimates.observer import Priors
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.step_shares import step_shares
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)
WARM_UP_SHARD = -1
"""Number of the warm-up shard. Its rows run, are discarded, and count in no figure."""


@dataclass(slots=True)
class _ShardInFlight:
    """A shard whose rows the engine runs, and its completions so far."""

    expected: int
    """Number of its rows."""
    meter: ShardMeter = field(default_factory=ShardMeter)
    completions: dict[int, Completion] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class EngineLoop:
    """Steps an engine on a thread of its own while shards are in flight. If a step raises, all of them fail.

    Public methods may be called from any thread. The lock guards everything but the step itself.
    """

    def __init__(self, engine: EngineProtocol, sampler: TimelineSampler, tuner: Tuner) -> None:
        self._engine: EngineProtocol = engine
        self._sampler, self._tuner = sampler, tuner
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._failure: EngineError | None = None
        self._in_flight: dict[int, _ShardInFlight] = {}
        self._submissions = 0
        self._step_began = 0.0
        self._totals = EngineTotals()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def run(
        self, shard: int, requests: Sequence[Request], plan: SpeculationPlan, priors: Priors
    ) -> tuple[list[Completion], ShardMeter]:
        """Runs all rows of a shard. Blocks. Returns the completions in row order, and the shard's telemetry.

        `plan` and `priors` come from the shard order. Raises EngineError when the engine has died or dies meanwhile.
        """
        entry = _ShardInFlight(expected=len(requests))
        if requests:
            self._submit(shard, entry, requests, plan, priors)
            entry.done.wait()
        if len(entry.completions) < entry.expected:
            raise self._new_failure()
        return [entry.completions[row] for row in sorted(entry.completions)], entry.meter

    def _submit(
        self, shard: int, entry: _ShardInFlight, requests: Sequence[Request], plan: SpeculationPlan, priors: Priors
    ) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._new_failure()
            if shard in self._in_flight:
                raise ValueError(f"shard {shard} is already in flight on this worker")
            self._engine.submit(requests, self._tuner.order(plan, priors))
            self._in_flight[shard] = entry
            self._submissions += 1
        self._wake.set()

    def _new_failure(self) -> EngineError:
        """Returns a new exception with the failure of the engine, since each caller raises its own."""
        assert self._failure is not None
        return type(self._failure)(str(self._failure))

    def status(self, *, after: int, final: bool = False) -> WorkerStatus:
        """Returns counters, and the timeline intervals that began after Unix second `after`.

        `final`: with the interval that is not over.
        """
        with self._lock:
            return WorkerStatus(
                running=self._engine.running,
                waiting=self._engine.waiting,
                k=self._totals.k,
                rows_done=self._totals.rows,
                output_tokens=self._totals.output_tokens,
                drafts=self._totals.verified.drafts,
                accepted_tokens=self._totals.verified.accepted_tokens,
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

    def close(self) -> None:
        """Stops stepping. Shards in flight fail."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=5)

    # on the engine's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._step()
            self._fail(EngineError("the engine stopped: the worker was stopped"))
        except BaseException as error:  # of any kind, also from a device library: callers must not wait forever
            log.error("%s", traceback.format_exc())
            kind = MemoryFailure if is_out_of_memory(error) else EngineError
            self._fail(kind(f"the engine stopped: {type(error).__name__}: {error}"))

    def _step(self) -> None:
        submissions = self._submissions
        self._step_began = time.monotonic()
        step = self._engine.step()
        self._step_began = 0.0
        if step is not None:
            self._deliver(step)
            return
        with self._lock:
            if self._in_flight and self._submissions == submissions:
                raise RuntimeError(f"the engine is idle but owes rows of shards {sorted(self._in_flight)}")
        self._wake.wait()
        self._wake.clear()

    def _deliver(self, step: StepReport) -> None:
        """Adds a step to the telemetry of its shards, and hands out its completions."""
        shares = step_shares(step)
        with self._lock:
            for shard, share in shares.items():
                if (entry := self._in_flight.get(shard)) is not None:
                    entry.meter.add_step(step, share)
            for shard, part in step.shards.items():
                if (entry := self._in_flight.get(shard)) is not None:
                    entry.meter.add_round(step, part, self._tuner.plan)
            if not shares.keys() <= {WARM_UP_SHARD}:
                self._tune(step)
                self._totals.add(step)
            for completion in step.completions:
                self._complete(completion)

    def _tune(self, step: StepReport) -> None:
        applied, new_plan = self._tuner.plan, self._tuner.step(step)
        self._sampler.add(step, plan=applied, queue_depth=self._tuner.queue_depth, now=time.time())
        if new_plan is not None:
            self._engine.submit([], new_plan)

    def _complete(self, completion: Completion) -> None:
        shard = completion.request.shard
        entry = self._in_flight[shard]
        entry.completions[completion.request.row] = completion
        entry.meter.add_completion(completion)
        if len(entry.completions) == entry.expected:
            del self._in_flight[shard]
            entry.done.set()

    def _fail(self, failure: EngineError) -> None:
        with self._lock:
            self._failure, self._engine = failure, StoppedEngine()
            self._step_began = 0.0
            for entry in self._in_flight.values():
                entry.done.set()
            self._in_flight.clear()
