"""The K, and the proposer, that are expected to generate the most tokens per second. docs/speculation.md has the why.

Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.cost import CostTable
from specpipe.speculation.expected import expected_tokens, rates, work_ahead
from specpipe.speculation.policy import Situation
from specpipe.speculation.reason import say

Array = npt.NDArray[np.float64]
HYSTERESIS = 0.02
"""What is in force is left only for something expected to be this much faster."""
EXPLORE_SHARE = 0.01
"""Of all rounds, and of all seconds, at most so much is spent on a K or a proposer that the plan would not take."""
EARLY_ROUNDS = 64
EARLY_SHARE = 1 / 32
"""In a worker's first rounds the share is larger: what is learnt then pays longest."""
HOPEFUL_ROUNDS = 32
"""A worker's first rounds take what may be best for all that is known: rows are new, the draft is not behind."""


class Choice(NamedTuple):
    """What one proposer would do."""

    proposer: ProposerName
    ks: npt.NDArray[np.int64]
    """[N + 1]."""
    rate: Array
    """[K + 1, N + 1] expected tokens per second."""
    seconds: float
    """Until all that waits is done."""


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

    def plan(self, situation: Situation) -> SpeculationPlan:
        depth = situation.queue_depth
        if situation.costs is None:
            return SpeculationPlan(ks=(0,), proposer="none", queue_depth=depth, reason="goodput: no round is timed yet")
        ahead = work_ahead(situation)
        choices = [self._choose(name, situation, situation.costs, ahead) for name in self.proposers]
        best = min(choices, key=lambda choice: choice.seconds)
        explore = self._explore(best, choices, situation, situation.costs, ahead)
        taken = best.rate[best.ks, np.arange(len(best.ks))]
        speculates = bool(best.ks.any())
        return SpeculationPlan(
            ks=tuple(int(k) for k in best.ks),
            proposer=best.proposer if speculates else "none",
            queue_depth=depth,
            reason=say(best.proposer, best.ks, best.rate, situation, explore),
            explore=explore,
            tokens_per_s=tuple(float(rate) for rate in taken),
        )

    def _choose(self, proposer: ProposerName, situation: Situation, costs: CostTable, ahead: Array) -> Choice:
        rate = rates(proposer, situation, costs, self.k)
        early = situation.rounds < HOPEFUL_ROUNDS
        likely = rates(proposer, situation, costs, self.k, hope=True) if early else rate
        favoured = self._favour(likely, proposer, situation)
        ks = np.argmax(favoured, axis=0)
        rows = np.arange(situation.slots + 1)
        saved = ahead * (1 / favoured[0] - 1 / favoured[ks, rows])  # seconds, against plain decoding
        if situation.behind and proposer == "draft":
            catch_up = rows * situation.behind * costs.draft_token_s
            gain = np.cumsum(saved) - catch_up
            turn = int(np.argmax(gain[: situation.running + 1]))
            if turn < situation.running:  # where more rows run, those that come are new: the draft is not behind there
                ks[turn + 1 :] = 0
                saved[turn + 1 :] = 0
            saved[turn] -= catch_up[turn]
        return Choice(proposer, ks, rate, float(np.sum(ahead / favoured[0]) - saved.sum()))

    def _favour(self, rate: Array, proposer: ProposerName, situation: Situation) -> Array:
        """The rates, with what is in force, at first plain decoding, a little better than it is."""
        favoured = rate.copy()
        ks, who = np.zeros(rate.shape[1], dtype=np.int64), "none"
        if (plan := situation.plan) is not None:
            ks, who = np.array([min(plan.k_for(n), self.k) for n in range(rate.shape[1])]), plan.proposer
        same = (ks == 0) | (who == proposer)
        favoured[ks[same], np.flatnonzero(same)] *= 1 + self.hysteresis
        return favoured

    def _hopes(
        self, best: Choice, choices: list[Choice], situation: Situation, costs: CostTable
    ) -> Iterator[tuple[float, Choice, int]]:
        """For each proposer the K, other than the plan's, that may be worth most, and its tokens per second then."""
        n = situation.running
        for choice in choices:
            hoped = rates(choice.proposer, situation, costs, self.k, hope=True)[:, n]
            if choice.proposer == best.proposer:
                hoped[best.ks[n]] = 0.0
            k = int(np.argmax(hoped))
            yield float(hoped[k]), choice, k

    def _explore(
        self, best: Choice, choices: list[Choice], situation: Situation, costs: CostTable, ahead: Array
    ) -> Exploration | None:
        """What might be better than the plan, for all that is known, where trying it is affordable."""
        n = situation.running
        now = float(best.rate[best.ks[n], n])
        hoped, choice, k = max(self._hopes(best, choices, situation, costs), key=lambda hope: hope[0])
        if hoped <= now * (1 + 2 * self.hysteresis):
            return None
        behind = situation.behind if k and choice.proposer == "draft" else 0.0
        tokens = n * float(expected_tokens(situation.acceptance[choice.proposer], self.k)[k])
        grid = costs.grid(proposer=choice.proposer, max_k=k, slots=situation.slots, context=situation.context)
        lost = max(0.0, float(grid[k, n]) - tokens / now)
        lost += min(n * behind, situation.prefill_budget) * costs.draft_token_s
        usual = n * float(expected_tokens(situation.acceptance[best.proposer], self.k)[best.ks[n]]) / now
        share = self.explore_share if situation.rounds >= EARLY_ROUNDS else EARLY_SHARE
        every = max(1.0, lost / usual) / share
        every = 2 ** math.ceil(math.log2(every))  # so that a new plan does not begin the count anew
        if (1 - now / hoped) * float(ahead.sum()) / now < lost:
            return None  # too little is left to pay for it
        return Exploration(k=k, proposer=choice.proposer if k else "none", rounds=1, every=every)
