"""The goodput policy: the K and proposer with the highest expected tokens per second. docs/speculation.md explains it.

Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specpipe.arrays import Array
from specpipe.core import Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.activation import plan_activation
from specpipe.speculation.policies.exploration import EARLY_ROUNDS, EARLY_SHARE, EXPLORE_SHARE, explore, trial_tokens
from specpipe.speculation.policies.plan_reason import plan_reason
from specpipe.speculation.policies.throughput import ProposerChoice, RemainingWork, expected_tokens, seconds_per_token

HYSTERESIS = 0.02
"""Relative gain from which the plan in force is replaced."""
PRETRIAL_INTERVAL = 8
"""Interval in rounds of trials on a few rows before the draft model is activated."""
PRETRIAL_DRAFTS = 8.0
"""Decayed drafts from which the evidence suffices without such trials."""
PRETRIAL_COST = 4
"""Trials whose catching up may cost as much as catching up all rows; below that no trial is made."""
MAX_LEAST_READY = 0.9
"""Largest `least_ready` of a plan: with rows ending and starting, never all of them have caught up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Chooses, for every occupancy, the K (0 included) and proposer with the most expected tokens per second."""

    k: int
    """Widest round."""
    proposers: tuple[ProposerName, ...]
    """Proposers to choose from, without "none"."""
    explore_share: float = EXPLORE_SHARE
    """Largest share of rounds spent on trials."""
    hysteresis: float = HYSTERESIS
    """Relative gain from which the plan in force is replaced."""

    @property
    def max_k(self) -> int:
        """Widest round: k."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the plan with the lowest expected seconds, and the trial to run beside it."""
        depth = inputs.queue_depth
        if inputs.costs is None:
            return SpeculationPlan(ks=(0,), proposer="none", queue_depth=depth, reason="goodput: no round is timed yet")
        work = RemainingWork.of(inputs)
        choices = [self._choose(name, work, inputs.costs) for name in self.proposers]
        best = min(choices, key=lambda choice: choice.seconds)
        n = work.n
        if _needs_trial_first(best, work):
            k, catch_up = int(best.ks[n]), trial_tokens(inputs)
            trial: Exploration | None = Exploration(
                k=k, proposer="draft", rounds=1, every=PRETRIAL_INTERVAL, catch_up=catch_up
            )
            best = best._replace(ks=np.zeros_like(best.ks))
        else:
            share = self.explore_share if inputs.rounds >= EARLY_ROUNDS else EARLY_SHARE
            trial = explore(best, choices, work, inputs.costs, share=share, min_gain=2 * self.hysteresis)
        tokens_per_s = 1 / best.token_s[best.ks, np.arange(len(best.ks))]
        return SpeculationPlan(
            ks=tuple(best.ks.tolist()),
            proposer=best.proposer if best.ks.any() else "none",
            queue_depth=depth,
            reason=plan_reason(best, work, trial),
            explore=trial,
            tokens_per_s=tuple(tokens_per_s.tolist()),
            least_ready=_least_ready(best, n) if best.proposer == "draft" and best.ks[n] else 0.0,
        )

    def _choose(self, proposer: ProposerName, work: RemainingWork, costs: CostTable) -> ProposerChoice:
        """Returns the best K of a proposer at every occupancy, with the draft model active where that pays."""
        inputs, n = work.inputs, work.n
        tokens = expected_tokens(inputs.acceptance[proposer], self.k)
        token_s = seconds_per_token(proposer, work, costs, tokens)
        favoured = token_s / self._favour(proposer, inputs.plan, token_s.shape[1])
        plain, drafting, ks = favoured[0], favoured[1:].min(axis=0), 1 + favoured[1:].argmin(axis=0)
        caught_up = 0.0
        if proposer == "draft":
            active = plan_activation(plain - drafting, work.ahead, inputs, costs.draft_prefill)
            caught_up = active.seconds
            ks[: active.fewest] = 0
            ks[active.most + 1 : n + 1] = 0
            # At higher occupancies the added rows are new. If the model is off now, it is off there too.
            ks[n + 1 :] *= (drafting[n + 1 :] < plain[n + 1 :]) & (active.most == n)
        else:
            ks *= drafting < plain
        seconds = float(work.ahead @ np.where(ks > 0, drafting, plain))
        return ProposerChoice(proposer, ks, token_s, tokens, seconds + caught_up)

    def _favour(self, proposer: ProposerName, plan: SpeculationPlan | None, size: int) -> Array:
        """Returns the divisors of the seconds per token that favour the plan in force, at first plain decoding."""
        if plan is None:
            return _favour((0,), False, self.k, size, self.hysteresis)
        return _favour(plan.ks, plan.proposer == proposer, self.k, size, self.hysteresis)


@lru_cache(maxsize=16)
def _favour(ks: tuple[int, ...], same_proposer: bool, max_k: int, size: int, hysteresis: float) -> Array:
    """Returns [max_k + 1, size] divisors of at least 1.

    ks: draft tokens in force by occupancy, from 0. same_proposer: the proposer is the one in force. Changing only its K
    is free, so all of its K get half of the advantage.
    """
    favour, rows = np.ones((max_k + 1, size)), np.arange(size)
    in_force = np.minimum(np.array(ks)[np.minimum(rows, len(ks) - 1)], max_k)
    if same_proposer:
        favour[1:, in_force > 0] = 1 + hysteresis / 2
    continued = (in_force == 0) | same_proposer
    favour[in_force[continued], rows[continued]] = 1 + hysteresis
    return favour


def _needs_trial_first(best: ProposerChoice, work: RemainingWork) -> bool:
    """True if the draft model is tried on a few rows first: recent evidence is thin and catching up all is dear."""
    inputs, n, plan = work.inputs, work.n, work.inputs.plan
    if best.proposer != "draft" or not best.ks[n] or (plan is not None and plan.proposer == "draft" and plan.k_for(n)):
        return False
    reached = inputs.acceptance["draft"].reached
    return sum(reached[:1]) < PRETRIAL_DRAFTS and n * inputs.behind > PRETRIAL_COST * trial_tokens(inputs)


def _least_ready(best: ProposerChoice, n: int) -> float:
    """Returns the share of n rows that must have a draft for a speculative round to be faster than a plain one."""
    k = int(best.ks[n])
    gain = best.tokens[k] - 1
    extra = best.tokens[k] * float(best.token_s[k, n] / best.token_s[0, n]) - 1  # token_s is seconds / (n · tokens)
    return min(max(extra / gain, 0.0), MAX_LEAST_READY) if gain > 0 else 0.0
