"""A mixed job that drains to its tail, under a policy and under every fixed K.

All jobs have the same rows and run on one engine that was loaded and prepared once. Acceptance is synthetic: for draft
positions beyond the given rates, the last conditional rate is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from specpipe.benchmark.bench_config import ACCEPTANCE, SEQUENCE, SWITCHES_AT, PolicyComparison
from specpipe.benchmark.switching import SWITCHES_S, Switch, measure_switches
from specpipe.benchmark.synthetic_engine import random_requests
from specpipe.benchmark.tuned_job import JobResult, TunedEngine
from specpipe.core import Profile, Request, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.make_policy import make_policy
from specpipe.speculation.policies.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Rounds that the engine timed before the first job."""

    profile: Profile

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {"profile": asdict(self.profile)}


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredJob:
    """One job at one acceptance level."""

    acceptance: str
    policy: str
    k: int | None
    """The fixed K; None under a policy."""
    after: tuple[str, ...] = ()
    """Levels of the jobs that ran before it with the same estimates."""
    result: JobResult

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        result = self.result
        return {
            "acceptance": self.acceptance,
            "policy": self.policy,
            **({} if self.k is None else {"k": self.k}),
            **({"after": list(self.after)} if self.after else {}),
            "tokens_per_s": result.tokens_per_s,
            "seconds": result.seconds,
            "output_tokens": result.output_tokens,
            "acceptance_length": result.verified.acceptance_length,
            "k_rounds": result.k_rounds,
            "plans": result.plans,
            "planning_s": result.planning_s,
            "late_kernels": list(result.late_kernels),
            "late_graphs": result.late_graphs,
            "reasons": list(result.reasons),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelResult:
    """The policy against the fixed K at one acceptance level."""

    acceptance: str
    best_fixed_k: int
    best_fixed_tokens_per_s: float
    share_of_best_fixed: float
    """Throughput of the policy over that of the best fixed K."""
    share_of_plain: float
    """Throughput of the policy over that of plain decoding."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceResult:
    """The policy against the fixed K over jobs of several acceptance levels, one after the other."""

    sequence: tuple[str, ...]
    seconds: float
    """Total of the policy's jobs."""
    fixed_seconds: Mapping[int, float]
    """Total by fixed K."""
    best_fixed_k: int
    share_of_best_fixed: float
    """Seconds of the best fixed K over those of the policy."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {
            "sequence": list(self.sequence),
            "seconds": self.seconds,
            "fixed_seconds": {str(k): total for k, total in self.fixed_seconds.items()},
            "best_fixed_k": self.best_fixed_k,
            "share_of_best_fixed": self.share_of_best_fixed,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchResult:
    """Throughput around one switch of speculation at one acceptance level."""

    acceptance: str
    k: int
    """K while speculation is on."""
    switch: Switch

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {"acceptance": self.acceptance, "k": self.k, **asdict(self.switch)}


ComparisonResult = RoundTimes | MeasuredJob | LevelResult | SequenceResult | SwitchResult


def extended_rates(rates: Sequence[float], k: int) -> tuple[float, ...]:
    """Returns k unconditional rates: the given ones, extended by repeating the last conditional rate."""
    out = list(rates[:k])
    while len(out) < k:
        previous = out[-2] if len(out) > 1 else 1.0
        out.append(out[-1] * (out[-1] / previous if previous else 0.0))
    return tuple(out)


def mixed_rows(comparison: PolicyComparison, vocab_size: int) -> list[Request]:
    """Returns the rows of a job: prompts and outputs of random lengths, the same for every call."""
    random = np.random.default_rng(0)
    pairs = random.integers(comparison.shortest, comparison.longest + 1, (comparison.rows, 2)).tolist()
    return random_requests([(prompt, new) for prompt, new in pairs], vocab_size)


def compare_policy(engine: Engine, comparison: PolicyComparison) -> Iterator[ComparisonResult]:
    """Runs all jobs on a new engine and yields each result when it is measured."""
    jobs = ComparisonJobs(engine, comparison)
    yield RoundTimes(profile=jobs.profile)
    sequence = [level for level in SEQUENCE if level in comparison.acceptance]
    first: TunedEngine | None = None
    for level in comparison.acceptance:
        # Without any accepted token every K > 0 only costs time: plain decoding is enough to compare with.
        for k in comparison.ks if level != "useless" else (0,):
            if (job := jobs.run_fixed(level, k)) is not None:
                yield job
        tuned = jobs.new_tuned_engine()
        yield jobs.run_policy(level, tuned)
        yield jobs.level_result(level)
        first = tuned if [level] == sequence[:1] else first
    if first is not None and len(sequence) > 1:
        yield from jobs.run_sequence(first, sequence)
    if SWITCHES_AT in comparison.acceptance:
        yield from jobs.run_switches(SWITCHES_AT)


class ComparisonJobs:
    """Jobs of the same rows, one after the other, on one prepared engine."""

    def __init__(self, engine: Engine, comparison: PolicyComparison) -> None:
        """Captures every graph and times the first rounds, as a worker does before its first shard."""
        self._engine, self._comparison = engine, comparison
        self._rows = mixed_rows(comparison, engine.target.vocab_size)
        self._results: dict[tuple[str, int | None], JobResult] = {}
        """By acceptance level and K; None: the policy without earlier estimates."""
        max_k = max(comparison.ks)
        choices = [(proposer, k) for k in range(max_k + 1) for proposer in (*engine.proposers, "none")]
        engine.prepare(SamplingParams(), choices)
        shapes = rounds_to_profile(engine.config.slots, max_k, engine.proposers)
        self.profile = engine.profile(SamplingParams(), shapes, context=PROFILED_CONTEXT, within_s=2.0)
        warm_up = self._rows[: max(4, engine.config.slots // 4)]  # loads cuBLAS's kernels and raises the clocks
        self._tuned(Fixed(k=max_k, proposer="draft")).run(warm_up, comparison.shard_rows)

    def new_tuned_engine(self) -> TunedEngine:
        """Returns the engine under the policy, with no estimates but the profile."""
        comparison = self._comparison
        return self._tuned(
            make_policy(
                comparison.policy,
                k=max(comparison.ks),
                max_running=comparison.threshold,
                proposers=self._engine.proposers,
            )
        )

    def run_fixed(self, level: str, k: int) -> MeasuredJob | None:
        """Runs the job with one K. Plain decoding (K=0) runs once, as acceptance does not change it; then None."""
        plain = next((result for (_, other), result in self._results.items() if other == 0), None)
        reused = k == 0 and plain is not None
        result = plain if reused and plain else self._run(self._tuned(Fixed(k=k, proposer="draft")), level)
        self._results[level, k] = result
        return None if reused else MeasuredJob(acceptance=level, policy="fixed", k=k, result=result)

    def run_policy(self, level: str, tuned: TunedEngine, after: Sequence[str] = ()) -> MeasuredJob:
        """Runs the job under the policy, after jobs of the levels `after` on the same `tuned` engine."""
        result = self._run(tuned, level)
        self._results.setdefault((level, None), result)
        policy = self._comparison.policy
        return MeasuredJob(acceptance=level, policy=policy, k=None, after=tuple(after), result=result)

    def level_result(self, level: str) -> LevelResult:
        """Compares the policy's first job at this level with the fixed K that ran at it."""
        fixed = {k: job.tokens_per_s for (at, k), job in self._results.items() if at == level and k is not None}
        best, speed = max(fixed, key=fixed.__getitem__), self._results[level, None].tokens_per_s
        return LevelResult(
            acceptance=level,
            best_fixed_k=best,
            best_fixed_tokens_per_s=fixed[best],
            share_of_best_fixed=speed / fixed[best],
            share_of_plain=speed / fixed[0],
        )

    def run_sequence(self, tuned: TunedEngine, levels: Sequence[str]) -> Iterator[MeasuredJob | SequenceResult]:
        """Continues with `levels[1:]` on `tuned`, which has run `levels[0]` and keeps its estimates.

        Fixed K have no estimates: their seconds are those of the jobs measured before.
        """
        seconds = self._results[levels[0], None].seconds
        for place, level in enumerate(levels[1:], start=1):
            job = self.run_policy(level, tuned, after=levels[:place])
            yield job
            seconds += job.result.seconds
        ks = [k for k in self._comparison.ks if all((level, k) in self._results for level in levels)]
        fixed = {k: sum(self._results[level, k].seconds for level in levels) for k in ks}
        best = min(fixed, key=fixed.__getitem__)
        yield SequenceResult(
            sequence=tuple(levels),
            seconds=seconds,
            fixed_seconds=fixed,
            best_fixed_k=best,
            share_of_best_fixed=fixed[best] / seconds,
        )

    def run_switches(self, level: str) -> Iterator[SwitchResult]:
        """Switches speculation off and on while all slots are full, with enough rows for `SWITCHES_S` seconds."""
        self._set_acceptance(level)
        k = min(k for k in self._comparison.ks if k)
        fastest = max(job.output_tokens / job.seconds for job in self._results.values())
        count = math.ceil(SWITCHES_S * fastest / np.mean([row.sampling.max_new_tokens for row in self._rows]))
        rows = mixed_rows(replace(self._comparison, rows=count), self._engine.target.vocab_size)
        for switch in measure_switches(self._engine, rows, k=k):
            yield SwitchResult(acceptance=level, k=k, switch=switch)

    def _tuned(self, policy: Policy) -> TunedEngine:
        return TunedEngine(self._engine, policy, self.profile)

    def _set_acceptance(self, level: str) -> None:
        rates = extended_rates(ACCEPTANCE[level], len(self._engine.config.synthetic_rates))
        self._engine.set_synthetic_rates(rates)

    def _run(self, tuned: TunedEngine, level: str) -> JobResult:
        self._set_acceptance(level)
        return tuned.run(self._rows, self._comparison.shard_rows)
