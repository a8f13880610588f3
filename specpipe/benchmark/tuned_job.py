"""A job on one engine, tuned as a run tunes it: shards with the driver's plans, and the worker's own between them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specpipe.benchmark.compilation_counter import Late
from specpipe.core import (
    MAX_SHARDS_IN_FLIGHT,
    QUEUED_ROWS_PER_SLOT,
    SHARDS_IN_FLIGHT,
    AcceptanceCounts,
    Profile,
    Request,
    StepReport,
)
from specpipe.engine.engine import Engine
from specpipe.speculation.policy import Policy
from specpipe.speculation.run_estimates import RunEstimates
from specpipe.speculation.tuner import Tuner

_WORKER = "worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """What a job came to."""

    seconds: float
    """From the first shard to the last row's end, prefill included."""
    output_tokens: int
    verified: AcceptanceCounts
    k_rounds: dict[str, int] = field(default_factory=dict)
    """Rounds by K, and by proposer where it is not the draft model."""
    plans: int = 0
    """How often the plan changed."""
    reasons: tuple[str, ...] = ()
    """Of the first plan and of the last ones."""
    planning_s: float = 0.0
    """What making plans in the worker took."""
    late_kernels: tuple[str, ...] = ()
    """Compiled while the job ran."""
    late_graphs: int = 0
    """Captured while the job ran."""
    emissions: tuple[tuple[float, int], ...] = ()
    """Seconds since the start and tokens of every step."""

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class TunedEngine:
    """An engine, a driver's learning and a worker's tuner. `run` may be called again: what was learnt stays."""

    def __init__(self, engine: Engine, policy: Policy, profile: Profile) -> None:
        """`profile`: what the engine says of its rounds before the first row."""
        slots, budget = engine.config.slots, engine.config.prefill_budget
        self._engine, self._policy = engine, policy
        self._learning = RunEstimates(slots=slots, proposers=engine.proposers, prefill_budget=budget)
        self._learning.admit(_WORKER, "this machine", profile)
        self._tuner = Tuner(policy, slots=slots, proposers=engine.proposers, prefill_budget=budget)

    def run(self, rows: Sequence[Request], shard_rows: int) -> JobResult:
        """All rows, in shards of `shard_rows`."""
        shards = [
            [replace(row, shard=shard) for row in rows[start : start + shard_rows]]
            for shard, start in enumerate(range(0, len(rows), shard_rows))
        ]
        book, planned = _Book(), self._tuner.planning_s
        with Late(self._engine) as late:
            seconds = self._play(shards, book)
        return replace(
            book.result(seconds),
            planning_s=self._tuner.planning_s - planned,
            late_kernels=tuple(late.kernels),
            late_graphs=late.graphs,
        )

    def _play(self, shards: list[list[Request]], book: _Book) -> float:
        """→ seconds."""
        began = time.perf_counter()
        while shards or book.open:
            while shards and self._takes_more(book):
                self._hand_out(shards.pop(0), sum(map(len, shards)), book)
            step = self._engine.step()
            assert step is not None, "the engine is idle but owes rows"
            ended = book.add(step, time.perf_counter() - began)
            if (plan := self._tuner.step(step)) is not None:
                self._engine.submit([], plan)
                book.note(plan.reason)
            for _ in range(ended):
                self._learning.see(_WORKER, self._tuner.evidence())
        while self._engine.step() is not None:  # a late round
            pass
        return time.perf_counter() - began

    def _takes_more(self, book: _Book) -> bool:
        short = sum(book.open.values()) < QUEUED_ROWS_PER_SLOT * self._engine.config.slots
        return len(book.open) < (MAX_SHARDS_IN_FLIGHT if short else SHARDS_IN_FLIGHT)

    def _hand_out(self, shard: list[Request], undispatched: int, book: _Book) -> None:
        depth = float(sum(book.open.values()) + len(shard) + undispatched)
        plan = self._policy.plan(self._learning.policy_inputs(_WORKER, queue_depth=depth))
        ruling = self._tuner.order(plan, self._learning.priors(_WORKER))
        self._engine.submit(shard, ruling)
        book.open[shard[0].shard] = len(shard)
        book.note(ruling.reason)


class _Book:
    """What steps of one job add up to."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """Rows that have not ended, by shard in flight."""
        self._tokens = 0
        self._verified = AcceptanceCounts()
        self._k_rounds: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._emissions: list[tuple[float, int]] = []

    def note(self, reason: str) -> None:
        self._reasons.append(reason)

    def add(self, step: StepReport, at: float) -> int:
        """→ how many shards ended with it."""
        emitted = 0
        for part in step.shards.values():
            emitted += part.emitted_tokens
            self._verified += part.verified
        self._tokens += emitted
        self._emissions.append((at, emitted))
        if step.running:
            self._k_rounds[f"{step.proposer} {step.k}" if step.proposer == "ngram" else str(step.k)] += 1
        for completion in step.completions:
            self.open[completion.request.shard] -= 1
        ended = [shard for shard, rows in self.open.items() if not rows]
        for shard in ended:
            del self.open[shard]
        return len(ended)

    def result(self, seconds: float) -> JobResult:
        reasons = self._reasons
        return JobResult(
            seconds=seconds,
            output_tokens=self._tokens,
            verified=self._verified,
            k_rounds=dict(sorted(self._k_rounds.items())),
            plans=len(reasons),
            reasons=tuple(reasons if len(reasons) < 5 else [reasons[0], *reasons[-3:]]),
            emissions=tuple(self._emissions),
        )
