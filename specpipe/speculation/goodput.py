"""The K, and the proposer, that are expected to generate the most tokens per second. docs/speculation.md has the why.

Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specpipe.arrays import Array
from specpipe.core import Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.activation import plan_activation
from specpipe.speculation.cost_table import CostTable
from specpipe.speculation.exploration import EARLY_ROUNDS, EARLY_SHARE, EXPLORE_SHARE, explore, trial_tokens
from specpipe.speculation.plan_reason import plan_reason
from specpipe.speculation.policy import PolicyInputs
from specpipe.speculation.throughput import ProposerChoice, RemainingWork, expected_tokens, seconds_per_token

HYSTERESIS = 0.02
"""What is in force is left only for something expected to be this much faster."""
LOOK = 8
"""Rounds until a draft that is to be turned on is tried on a few rows."""
LOOK_DRAFTS = 8.0
"""Not if so many drafts, those of the past decayed, say how it does."""
LOOK_TRIALS = 4
"""Not if catching up all rows is as cheap as so many tries."""
MOST_READY = 0.9
"""Rows that end and come never let all of them be ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """argmax over K and proposer of expected tokens / seconds, 0 included, for every occupancy."""

    k: int
    """Widest round."""
    proposers: tuple[ProposerName, ...]
    """Those to choose from, "none" aside."""
    explore_share: float = EXPLORE_SHARE
    hysteresis: float = HYSTERESIS

    @property
    def max_k(self) -> int:
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        depth = inputs.queue_depth
        if inputs.costs is None:
            return SpeculationPlan(ks=(0,), proposer="none", queue_depth=depth, reason="goodput: no round is timed yet")
        work = RemainingWork.of(inputs)
        choices = [self._choose(name, work, inputs.costs) for name in self.proposers]
        best = min(choices, key=lambda choice: choice.seconds)
        n = work.n
        if _needs_trial_first(best, work):
            k, catch_up = int(best.ks[n]), trial_tokens(inputs)
            tries: Exploration | None = Exploration(k=k, proposer="draft", rounds=1, every=LOOK, catch_up=catch_up)
            best = best._replace(ks=np.zeros_like(best.ks))
        else:
            share = self.explore_share if inputs.rounds >= EARLY_ROUNDS else EARLY_SHARE
            tries = explore(best, choices, work, inputs.costs, share=share, least_gain=2 * self.hysteresis)
        taken = 1 / best.token_s[best.ks, np.arange(len(best.ks))]
        return SpeculationPlan(
            ks=tuple(best.ks.tolist()),
            proposer=best.proposer if best.ks.any() else "none",
            queue_depth=depth,
            reason=plan_reason(best, work, tries),
            explore=tries,
            tokens_per_s=tuple(taken.tolist()),
            least_ready=_least_ready(best, n) if best.proposer == "draft" and best.ks[n] else 0.0,
        )

    def _choose(self, proposer: ProposerName, work: RemainingWork, costs: CostTable) -> ProposerChoice:
        inputs, n = work.inputs, work.n
        tokens = expected_tokens(inputs.acceptance[proposer], self.k)
        token_s = seconds_per_token(proposer, work, costs, tokens)
        favoured = token_s / self._favour(proposer, inputs.plan, token_s.shape[1])
        plain, drafting, ks = favoured[0], favoured[1:].min(axis=0), 1 + favoured[1:].argmin(axis=0)
        caught_up = 0.0
        if proposer == "draft":
            turn = plan_activation(plain - drafting, work.ahead, inputs, costs.draft_prefill)
            caught_up = turn.seconds
            ks[: turn.fewest] = 0
            ks[turn.most + 1 : n + 1] = 0
            # Where more rows run, those that come are new: where the draft is off now it is off there too.
            ks[n + 1 :] *= (drafting[n + 1 :] < plain[n + 1 :]) & (turn.most == n)
        else:
            ks *= drafting < plain
        seconds = float(work.ahead @ np.where(ks > 0, drafting, plain))
        return ProposerChoice(proposer, ks, token_s, tokens, seconds + caught_up)

    def _favour(self, proposer: ProposerName, plan: SpeculationPlan | None, size: int) -> Array:
        """What seconds are divided by: what is in force, at first plain decoding, is a little better than it is."""
        if plan is None:
            return _favour((0,), False, self.k, size, self.hysteresis)
        return _favour(plan.ks, plan.proposer == proposer, self.k, size, self.hysteresis)


@lru_cache(maxsize=16)
def _favour(ks: tuple[int, ...], going_on: bool, max_k: int, size: int, hysteresis: float) -> Array:
    """→ [max K + 1, size]. ks: in force while so many rows run, from 0; going_on: with the same proposer: to go on with
    another K costs nothing, to turn the proposer off may."""
    favour, rows = np.ones((max_k + 1, size)), np.arange(size)
    in_force = np.minimum(np.array(ks)[np.minimum(rows, len(ks) - 1)], max_k)
    if going_on:
        favour[1:, in_force > 0] = 1 + hysteresis / 2
    taken = (in_force == 0) | going_on
    favour[in_force[taken], rows[taken]] = 1 + hysteresis
    return favour


def _needs_trial_first(best: ProposerChoice, work: RemainingWork) -> bool:
    """Whether to try the draft on a few rows before all are caught up: little is known of late, and much to pay."""
    inputs, n, plan = work.inputs, work.n, work.inputs.plan
    if best.proposer != "draft" or not best.ks[n] or (plan is not None and plan.proposer == "draft" and plan.k_for(n)):
        return False
    reached = inputs.acceptance["draft"].reached
    return sum(reached[:1]) < LOOK_DRAFTS and n * inputs.behind > LOOK_TRIALS * trial_tokens(inputs)


def _least_ready(best: ProposerChoice, n: int) -> float:
    """Share of n rows with a draft from which on a round with drafts makes more tokens a second than a plain one."""
    k = int(best.ks[n])
    gain = best.tokens[k] - 1
    longer = best.tokens[k] * float(best.token_s[k, n] / best.token_s[0, n]) - 1  # a token: seconds / (n · tokens)
    return min(max(longer / gain, 0.0), MOST_READY) if gain > 0 else 0.0
