"""A worker's own tuning: between two shards the policy goes on with what the worker's rounds show."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, Evidence, ProposerName, SpeculationPlan, StepReport
from specpipe.speculation.evidence_log import EvidenceLog
from specpipe.speculation.observer import WORKER_HALF_LIFE, Observer, Priors
from specpipe.speculation.policy import Policy

REPLAN_ROUNDS = 16
"""Between two plans; fewer at first, when every round teaches much."""
MOSTLY_NEW = 0.9
"""With a greater share of new rows no plan is in force: it was made for others."""
_SHARE = 0.02  # of the time goes into making plans, at most


def rounds_to_plan(rounds: int) -> int:
    """From one plan to the next, after so many rounds."""
    return min(REPLAN_ROUNDS, max(1, rounds))


class Tuner:
    """Follows an engine's steps and says which plan is to rule. One owner, no lock."""

    def __init__(
        self,
        policy: Policy,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        prefill_budget: int = PREFILL_BUDGET,
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
    ) -> None:
        """`proposers`: those that the engine has. `output_tokens`: expected of a row before one has ended."""
        self._policy = policy
        self._observer = Observer(
            slots=slots,
            proposers=proposers,
            half_life=WORKER_HALF_LIFE,
            output_tokens=output_tokens,
            prefill_budget=prefill_budget,
        )
        self._recent, self._unsent = EvidenceLog(), EvidenceLog()
        self._rounds = self._since = 0
        self.queue_depth = 0.0
        """As the driver said, less the rows that have ended since."""
        self.planning_s = 0.0
        """What making plans has taken so far."""
        self._next = 0.0
        self.plan: SpeculationPlan | None = None
        """The one in force."""

    def order(self, plan: SpeculationPlan, priors: Priors) -> SpeculationPlan:
        """A shard has come, with the driver's plan and what the run has learnt → the plan that rules from now on.

        It is the policy's again, made here: the worker may know its rows better than the driver does.
        """
        self.queue_depth = plan.queue_depth
        self._observer.use_priors(priors)
        return self._replan(admit_rows=True)

    def step(self, step: StepReport) -> SpeculationPlan | None:
        """A step is over → a new plan, every few rounds, if it differs from the one in force in what it asks for."""
        self._recent.add(step)
        self._unsent.add(step)
        self.queue_depth = max(0.0, self.queue_depth - len(step.completions))
        self._rounds += step.running > 0
        self._since += step.running > 0
        if self._since < rounds_to_plan(self._rounds - self._since) or time.perf_counter() < self._next:
            return None
        before = self.plan
        plan = self._replan()
        return None if before is not None and _asks(before) == _asks(plan) else plan

    def _replan(self, *, admit_rows: bool = False) -> SpeculationPlan:
        began = time.perf_counter()
        self._since = 0
        self._observer.see(self._recent.take())
        in_force = self.plan
        if admit_rows and self._observer.admit_rows(queue_depth=self.queue_depth) > MOSTLY_NEW:
            in_force = None
        plan = self._policy.plan(self._observer.policy_inputs(queue_depth=self.queue_depth, plan=in_force))
        now = time.perf_counter()
        self.planning_s += now - began
        self._next = now + (now - began) / _SHARE if self._rounds >= REPLAN_ROUNDS else 0.0
        self.plan = plan
        return plan

    def evidence(self) -> Evidence:
        """What the driver has not heard of yet."""
        return self._unsent.take()


def _asks(plan: SpeculationPlan) -> tuple[object, ...]:
    return plan.ks, plan.proposer, plan.explore
