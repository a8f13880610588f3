"""Tuning within a worker: new plans between two shards, from the evidence of the worker's own rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, Evidence, ProposerName, SpeculationPlan, StepReport
from specpipe.speculation.estimates.evidence_log import EvidenceLog
from specpipe.speculation.estimates.observer import WORKER_HALF_LIFE, Observer
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.policy import REPLAN_ROUNDS, Policy

PLANNING_SHARE = 0.02
"""Largest share of time spent on planning."""


def rounds_to_plan(rounds: int) -> int:
    """Returns the rounds from one plan to the next, after this many rounds with one proposer."""
    return min(REPLAN_ROUNDS, max(1, rounds))


class Tuner:
    """Chooses the plan in force from an engine's steps. One owner, no lock."""

    def __init__(
        self,
        policy: Policy,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """proposers: those of the engine. output_tokens: expected length of a row before any has ended. clock: seconds
        by which planning is limited to a share of the time."""
        self._policy, self._clock = policy, clock
        self._observer = Observer(
            slots=slots,
            proposers=proposers,
            half_life=WORKER_HALF_LIFE,
            output_tokens=output_tokens,
        )
        self._recent, self._unsent = EvidenceLog(), EvidenceLog()
        self._rounds = self._since = self._settled = 0
        """Rounds in all, since the last plan, and since the proposer changed."""
        self._proposer: ProposerName | None = None
        self.queue_depth = 0.0
        """Queue depth of the last shard order, less the rows that ended since."""
        self.planning_s = 0.0
        """Seconds spent on planning so far."""
        self._next = 0.0
        self.plan: SpeculationPlan | None = None
        """Plan in force."""

    def order(self, plan: SpeculationPlan, priors: PolicyInputs | None) -> SpeculationPlan:
        """Takes in a shard order with the driver's plan and priors. Returns the plan in force from now on.

        The policy plans again here, because the worker has newer evidence of its rows than the driver.
        """
        self.queue_depth = plan.queue_depth
        if priors is not None:
            self._observer.start(priors)
        return self._replan(new_rows=True)

    def step(self, step: StepReport) -> SpeculationPlan | None:
        """Takes in a finished step. Returns a new plan every few rounds if its K, proposer or trial has changed."""
        self._recent.add(step)
        self._unsent.add(step)
        self.queue_depth = max(0.0, self.queue_depth - len(step.completions))
        if step.running:
            self._rounds, self._since = self._rounds + 1, self._since + 1
            self._settled = self._settled + 1 if step.proposer == self._proposer else 1
            self._proposer = step.proposer
        if self._since < rounds_to_plan(self._settled - self._since) or self._clock() < self._next:
            return None
        before = self.plan
        plan = self._replan()
        return None if before is not None and _effect(before) == _effect(plan) else plan

    def _replan(self, *, new_rows: bool = False) -> SpeculationPlan:
        """Makes a plan from all evidence so far. new_rows: a shard's rows are about to take the free slots."""
        began = self._clock()
        self._since = 0
        self._observer.add(self._recent.take())
        depth, known = self.queue_depth, self._observer
        inputs = known.with_new_rows(depth) if new_rows else replace(known.inputs, queue_depth=depth)
        self.plan = self._policy.plan(inputs)
        now = self._clock()
        self.planning_s += now - began
        self._next = now + (now - began) / PLANNING_SHARE if self._rounds >= REPLAN_ROUNDS else 0.0
        return self.plan

    def evidence(self) -> Evidence:
        """Returns and clears the evidence since the last call, for the driver."""
        return self._unsent.take()


def _effect(plan: SpeculationPlan) -> tuple[object, ...]:
    """Returns the parts of a plan that change what the engine does."""
    return plan.ks, plan.proposer, plan.explore, plan.new_rows_limit
