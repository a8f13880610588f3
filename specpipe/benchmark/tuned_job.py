"""One job on one engine under a policy, without a pipeline.

As in a run, the policy makes a plan for each shard, and the worker's tuner adjusts it between shards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specpipe.benchmark.compilation_counter import CompilationCounter
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
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import Tuner

_WORKER = "worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """Measurements of one job."""

    seconds: float
    """From the first shard to the end of the last row, prefill included."""
    output_tokens: int
    verified: AcceptanceCounts
    k_rounds: dict[str, int] = field(default_factory=dict)
    """Rounds by K; "ngram K" where the proposer is not the draft model."""
    plans: int = 0
    """Number of plans used."""
    reasons: tuple[str, ...] = ()
    """Reasons of the first plan and the last three; of all plans if there are fewer than five."""
    planning_s: float = 0.0
    """Seconds that the tuner spent on plans."""
    late_kernels: tuple[str, ...] = ()
    """Kernels compiled while the job ran."""
    late_graphs: int = 0
    """Number of graphs captured while the job ran."""
    emissions: tuple[tuple[float, int], ...] = ()
    """(seconds since the start, emitted tokens) of every step."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, prefill included."""
        return self.output_tokens / self.seconds


class TunedEngine:
    """An engine with a policy, its estimates and a tuner. Estimates are kept from one `run` to the next."""

    def __init__(self, engine: Engine, policy: Policy, profile: Profile) -> None:
        """`profile`: rounds that the engine timed before the first row."""
        slots, budget = engine.config.slots, engine.config.prefill_budget
        self._engine, self._policy = engine, policy
        self._estimates = RunEstimates(slots=slots, proposers=engine.proposers, prefill_budget=budget)
        self._estimates.admit(_WORKER, "this machine", profile)
        self._tuner = Tuner(policy, slots=slots, proposers=engine.proposers, prefill_budget=budget)

    def run(self, rows: Sequence[Request], shard_rows: int) -> JobResult:
        """Runs all rows in shards of `shard_rows` rows."""
        shards = [
            [replace(row, shard=shard) for row in rows[start : start + shard_rows]]
            for shard, start in enumerate(range(0, len(rows), shard_rows))
        ]
        totals, planning_before = _JobTotals(), self._tuner.planning_s
        with CompilationCounter(self._engine) as compiled:
            seconds = self._run_shards(shards, totals)
        return replace(
            totals.result(seconds),
            planning_s=self._tuner.planning_s - planning_before,
            late_kernels=tuple(compiled.kernels),
            late_graphs=compiled.graphs,
        )

    def _run_shards(self, shards: list[list[Request]], totals: _JobTotals) -> float:
        """Runs shards to completion, at most MAX_SHARDS_IN_FLIGHT at once, and returns the seconds."""
        began = time.perf_counter()
        while shards or totals.open_rows:
            while shards and self._takes_more(totals):
                self._submit(shards.pop(0), sum(map(len, shards)), totals)
            step = self._engine.step()
            assert step is not None, "the engine is idle but rows are unfinished"
            ended = totals.add(step, time.perf_counter() - began)
            if (plan := self._tuner.step(step)) is not None:
                self._engine.submit([], plan)
                totals.add_plan(plan.reason)
            for _ in range(ended):
                self._estimates.add(_WORKER, self._tuner.evidence())
        while self._engine.step() is not None:  # one more round without rows may follow
            pass
        return time.perf_counter() - began

    def _takes_more(self, totals: _JobTotals) -> bool:
        """Returns whether the engine takes one more shard; the limits are those of a run's driver."""
        few_rows = sum(totals.open_rows.values()) < QUEUED_ROWS_PER_SLOT * self._engine.config.slots
        return len(totals.open_rows) < (MAX_SHARDS_IN_FLIGHT if few_rows else SHARDS_IN_FLIGHT)

    def _submit(self, shard: list[Request], unsubmitted_rows: int, totals: _JobTotals) -> None:
        """Submits a shard with the policy's plan for it, as adjusted by the tuner."""
        depth = float(sum(totals.open_rows.values()) + len(shard) + unsubmitted_rows)
        plan = self._policy.plan(self._estimates.policy_inputs(_WORKER, queue_depth=depth))
        used = self._tuner.order(plan, self._estimates.priors(_WORKER))
        self._engine.submit(shard, used)
        totals.open_rows[shard[0].shard] = len(shard)
        totals.add_plan(used.reason)


class _JobTotals:
    """Sums over the steps of one job."""

    def __init__(self) -> None:
        self.open_rows: dict[int, int] = {}
        """Unfinished rows by shard in flight."""
        self._tokens = 0
        self._verified = AcceptanceCounts()
        self._k_rounds: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._emissions: list[tuple[float, int]] = []

    def add_plan(self, reason: str) -> None:
        """Counts one plan."""
        self._reasons.append(reason)

    def add(self, step: StepReport, at_s: float) -> int:
        """Adds a step that ended `at_s` seconds after the start; returns the number of shards that ended with it."""
        emitted = 0
        for part in step.shards.values():
            emitted += part.emitted_tokens
            self._verified += part.verified
        self._tokens += emitted
        self._emissions.append((at_s, emitted))
        if step.running:
            self._k_rounds[f"{step.proposer} {step.k}" if step.proposer == "ngram" else str(step.k)] += 1
        for completion in step.completions:
            self.open_rows[completion.request.shard] -= 1
        ended = [shard for shard, rows in self.open_rows.items() if not rows]
        for shard in ended:
            del self.open_rows[shard]
        return len(ended)

    def result(self, seconds: float) -> JobResult:
        """Returns the sums of a job that took `seconds`."""
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
