"""One engine, one thread that steps it, and any number of shards that wait for their rows."""

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
from specpipe.pipeline.worker.engine_protocol import EngineProtocol, NoEngine
from specpipe.speculation.observer import Priors
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.step_shares import step_shares
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)
WARM_UP_SHARD = -1  # rows of this shard run, are thrown away, and appear in no figure


@dataclass(slots=True)
class _Ticket:
    """A shard in flight: what has come back of it."""

    expected: int
    meter: ShardMeter = field(default_factory=ShardMeter)
    completions: dict[int, Completion] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class EngineLoop:
    """Steps the engine for as long as shards are in flight; wakes on submission, fails all of them if a step raises."""

    def __init__(self, engine: EngineProtocol, sampler: TimelineSampler, tuner: Tuner) -> None:
        self._engine: EngineProtocol = engine
        self._sampler, self._tuner = sampler, tuner
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._failure: EngineError | None = None
        self._tickets: dict[int, _Ticket] = {}
        self._submissions = 0
        self._step_began = 0.0
        self._totals = EngineTotals()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def run(
        self, shard: int, requests: Sequence[Request], plan: SpeculationPlan, priors: Priors
    ) -> tuple[list[Completion], ShardMeter]:
        """Run one shard's rows to their end; blocks. Completions come in row order.

        `plan`, `priors`: what the driver sent with the shard.

        Raises EngineError when the engine has died, before or meanwhile.
        """
        ticket = _Ticket(expected=len(requests))
        if requests:
            self._submit(shard, ticket, requests, plan, priors)
            ticket.done.wait()
        if len(ticket.completions) < ticket.expected:
            raise self._died()
        return [ticket.completions[row] for row in sorted(ticket.completions)], ticket.meter

    def _submit(
        self, shard: int, ticket: _Ticket, requests: Sequence[Request], plan: SpeculationPlan, priors: Priors
    ) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._died()
            if shard in self._tickets:
                raise ValueError(f"shard {shard} is already in flight on this worker")
            self._engine.submit(requests, self._tuner.order(plan, priors))
            self._tickets[shard] = ticket
            self._submissions += 1
        self._wake.set()

    def _died(self) -> EngineError:
        """Why, as an exception of its own for each caller. Raises AssertionError when the engine lives."""
        assert self._failure is not None
        return type(self._failure)(str(self._failure))

    def status(self, *, after: int, final: bool = False) -> WorkerStatus:
        """Counters so far, and the timeline's intervals that began after Unix second `after` and are over, or all."""
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
        """What rounds have shown since somebody asked last, here or for the status."""
        with self._lock:
            return self._tuner.evidence()

    def totals(self) -> EngineTotals:
        """Sums over all steps so far, warm-up excluded."""
        with self._lock:
            return self._totals.copy()

    def gauges(self) -> EngineGauges:
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
        """Stop stepping. Shards still in flight fail."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._step()
            self._fail(EngineError("the engine stopped: the worker was stopped"))
        except BaseException as error:  # also what a device library raises: nobody may wait forever
            log.error("%s", traceback.format_exc())
            kind = MemoryFailure if is_out_of_memory(error) else EngineError
            self._fail(kind(f"the engine stopped: {type(error).__name__}: {error}"))

    def _step(self) -> None:
        seen = self._submissions
        self._step_began = time.monotonic()
        step = self._engine.step()
        self._step_began = 0.0
        if step is not None:
            self._deliver(step)
            return
        with self._lock:
            if self._tickets and self._submissions == seen:
                raise RuntimeError(f"the engine is idle but owes rows of shards {sorted(self._tickets)}")
        self._wake.wait()
        self._wake.clear()

    def _deliver(self, step: StepReport) -> None:
        split = step_shares(step)
        with self._lock:
            for shard, share in split.items():
                if (ticket := self._tickets.get(shard)) is not None:
                    ticket.meter.add_step(step, share)
            for shard, part in step.shards.items():
                if (ticket := self._tickets.get(shard)) is not None:
                    ticket.meter.add_round(step, part, self._tuner.plan)
            if not split.keys() <= {WARM_UP_SHARD}:
                self._tune(step)
                self._totals.add(step)
            for completion in step.completions:
                self._complete(completion)

    def _tune(self, step: StepReport) -> None:
        ruled, plan = self._tuner.plan, self._tuner.step(step)
        self._sampler.add(step, plan=ruled, queue_depth=self._tuner.queue_depth, now=time.time())
        if plan is not None:
            self._engine.submit([], plan)

    def _complete(self, completion: Completion) -> None:
        shard = completion.request.shard
        ticket = self._tickets[shard]
        ticket.completions[completion.request.row] = completion
        ticket.meter.add_completion(completion)
        if len(ticket.completions) == ticket.expected:
            del self._tickets[shard]
            ticket.done.set()

    def _fail(self, failure: EngineError) -> None:
        with self._lock:
            self._failure, self._engine = failure, NoEngine()
            self._step_began = 0.0
            for ticket in self._tickets.values():
                ticket.done.set()
            self._tickets.clear()
