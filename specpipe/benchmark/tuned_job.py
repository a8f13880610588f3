"""One job on one engine under a policy, with the driver and the worker steps of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specpipe.benchmark.compilation_counter import CompilationCounter
from specpipe.core import AcceptanceCounts, Profile, Request, SpeculationPlan, StepReport
from specpipe.engine.engine import Engine
from specpipe.pipeline.run.one_engine import OneEngine
from specpipe.pipeline.worker.engine_steps import EngineSteps
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.timeline_sampler import TimelineSampler

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


def loop_over(
    engine: Engine, policy: Policy, profile: Profile, on_step: Callable[[StepReport], None]
) -> tuple[OneEngine, Tuner]:
    """Returns the loop of a run over one engine, and its tuner. on_step: receives every step."""
    slots = engine.config.slots
    tuner = Tuner(policy, slots=slots, proposers=engine.proposers)
    steps = EngineSteps(engine, TimelineSampler(worker=_WORKER, epoch=0), tuner)
    estimates = RunEstimates(slots=slots, proposers=engine.proposers)
    return OneEngine(steps, policy, estimates, slots=slots, profile=profile, on_step=on_step), tuner


class TunedEngine:
    """An engine with a policy, its estimates and a tuner. Estimates are kept from one `run` to the next."""

    def __init__(self, engine: Engine, policy: Policy, profile: Profile) -> None:
        """`profile`: rounds that the engine timed before the first row."""
        self._engine = engine
        self._loop, self._tuner = loop_over(engine, policy, profile, self._observe)
        self._totals = _JobTotals()

    def _observe(self, step: StepReport) -> None:
        self._totals.add(step, self._tuner.plan)

    def run(self, rows: Sequence[Request], shard_rows: int) -> JobResult:
        """Runs all rows in shards of `shard_rows` rows."""
        shards = [
            [replace(row, shard=shard) for row in rows[start : start + shard_rows]]
            for shard, start in enumerate(range(0, len(rows), shard_rows))
        ]
        planning_before = self._tuner.planning_s
        with CompilationCounter(self._engine) as compiled:
            self._totals = _JobTotals()
            self._loop.run(shards)
        return replace(
            self._totals.result(),
            planning_s=self._tuner.planning_s - planning_before,
            late_kernels=tuple(compiled.kernels),
            late_graphs=compiled.graphs,
        )


class _JobTotals:
    """Sums over the steps of one job that begins now."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds = 0.0
        """Until the latest completion."""
        self._tokens = 0
        self._verified = AcceptanceCounts()
        self._k_rounds: Counter[str] = Counter()
        self._plan: SpeculationPlan | None = None
        self._reasons: list[str] = []
        self._emissions: list[tuple[float, int]] = []

    def add(self, step: StepReport, plan: SpeculationPlan | None) -> None:
        """Adds a step that ends now. plan: the plan of the next step."""
        at_s = time.perf_counter() - self._began
        emitted = 0
        for part in step.shards.values():
            emitted += part.emitted_tokens
            self._verified += part.verified
        self._tokens += emitted
        self._emissions.append((at_s, emitted))
        if step.running:
            self._k_rounds[f"{step.proposer} {step.k}" if step.proposer == "ngram" else str(step.k)] += 1
        if step.completions:
            self._seconds = at_s
        if plan is not None and plan is not self._plan:
            self._plan = plan
            self._reasons.append(plan.reason)

    def result(self) -> JobResult:
        """Returns the sums."""
        reasons = self._reasons
        return JobResult(
            seconds=self._seconds,
            output_tokens=self._tokens,
            verified=self._verified,
            k_rounds=dict(sorted(self._k_rounds.items())),
            plans=len(reasons),
            reasons=tuple(reasons if len(reasons) < 5 else [reasons[0], *reasons[-3:]]),
            emissions=tuple(self._emissions),
        )
