"""The K, and the proposer, that are expected to generate the most tokens per second. docs/speculation.md has the why.

Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.cost import CostTable
from specpipe.speculation.expected import expected_tokens, rates, work_ahead
from specpipe.speculation.policy import Situation
from specpipe.speculation.reason import say
from specpipe.speculation.turning import turn_on

Array = npt.NDArray[np.float64]
HYSTERESIS = 0.02
"""What is in force is left only for something expected to be this much faster."""
EXPLORE_SHARE = 0.01
"""Of all rounds, at most so much is spent on a K or a proposer that the plan would not take, and half as much of all
seconds, catching up included."""
EARLY_ROUNDS = 64
EARLY_SHARE = 1 / 16
"""In a worker's first rounds the share is larger: what is learnt then pays longest."""
FIRST_TRY = 16
"""Rounds until the first try of a proposer of which nothing is known, whatever it costs."""
LOOK = 8
"""Rounds until a draft that is to be turned on is tried on a few rows."""
LOOK_DRAFTS = 8.0
"""Not if so many drafts, those of the past decayed, say how it does."""
LOOK_TRIALS = 4
"""Not if catching up all rows is as cheap as so many tries."""
TRIES = 4
"""Rounds of a try for which rows are caught up: that is paid once."""
TRIAL_TOKENS = 1024
TRIAL_ROWS = 4
"""Rows of mean length that the draft model catches up for a try; of shorter ones, which are nearest to it, more."""
MOST_READY = 0.9
"""Rows that end and come never let all of them be ready."""


class Choice(NamedTuple):
    """What one proposer would do."""

    proposer: ProposerName
    ks: npt.NDArray[np.int64]
    """[N + 1]."""
    rate: Array
    """[K + 1, N + 1] expected tokens per second."""
    tokens: Array
    """[K + 1] expected of a row's round."""
    seconds: float
    """Until all that waits is done."""


class _Try(NamedTuple):
    """A round, or a few, of something else."""

    proposer: ProposerName
    k: int
    times: int
    """One after the other."""
    gain: float
    """Share of the time that it would save, for all that is known."""
    lost: float
    """Seconds, if it is no better than thought."""
    rounds: float
    """What it counts for in the budget."""

    @property
    def worth(self) -> float:
        return self.gain / self.rounds


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
        n = situation.running
        if _must_look(best, situation):
            k, catch_up = int(best.ks[n]), trial_tokens(situation)
            explore: Exploration | None = Exploration(k=k, proposer="draft", rounds=1, every=LOOK, catch_up=catch_up)
            best = best._replace(ks=np.zeros_like(best.ks))
        else:
            explore = self._explore(best, choices, situation, situation.costs, ahead)
        taken = best.rate[best.ks, np.arange(len(best.ks))]
        speculates = bool(best.ks.any())
        return SpeculationPlan(
            ks=tuple(best.ks.tolist()),
            proposer=best.proposer if speculates else "none",
            queue_depth=depth,
            reason=say(best.proposer, best.ks, best.rate, situation, explore),
            explore=explore,
            tokens_per_s=tuple(taken.tolist()),
            least_ready=_least_ready(best, n) if best.proposer == "draft" and best.ks[n] else 0.0,
        )

    def _choose(self, proposer: ProposerName, situation: Situation, costs: CostTable, ahead: Array) -> Choice:
        rate = rates(proposer, situation, costs, self.k)
        favoured = self._favour(rate, proposer, situation)
        ks, rows = np.argmax(favoured, axis=0), np.arange(situation.slots + 1)
        caught_up = 0.0
        if proposer == "draft":
            drafting = 1 + np.argmax(favoured[1:], axis=0)
            turn = turn_on(1 / favoured[0] - 1 / favoured[drafting, rows], ahead, situation, costs.draft_token_s)
            n, caught_up = situation.running, turn.seconds
            ks[: n + 1] = 0
            ks[turn.fewest : turn.most + 1] = drafting[turn.fewest : turn.most + 1]
            if turn.most < n:  # where more rows run, those that come are new: the draft is off there too
                ks[n + 1 :] = 0
        tokens = expected_tokens(situation.acceptance[proposer], self.k)
        return Choice(proposer, ks, rate, tokens, float(np.sum(ahead / favoured[ks, rows])) + caught_up)

    def _favour(self, rate: Array, proposer: ProposerName, situation: Situation) -> Array:
        """The rates, with what is in force, at first plain decoding, a little better than it is."""
        favoured = rate.copy()
        ks, who = np.zeros(rate.shape[1], dtype=np.int64), "none"
        if (plan := situation.plan) is not None:
            ks, who = np.minimum(self._by_rows(plan, rate.shape[1]), self.k), plan.proposer
        off = np.flatnonzero(ks == 0)
        favoured[0, off] *= 1 + self.hysteresis
        if who == proposer:  # to go on with another K costs nothing, to turn the proposer off may
            on = np.flatnonzero(ks)
            favoured[1:, on] *= 1 + self.hysteresis / 2
            favoured[ks[on], on] *= (1 + self.hysteresis) / (1 + self.hysteresis / 2)
        return favoured

    @staticmethod
    def _by_rows(plan: SpeculationPlan, size: int) -> npt.NDArray[np.int64]:
        """→ [size]: K while so many rows run, from 0."""
        return np.asarray(np.array(plan.ks)[np.minimum(np.arange(size), len(plan.ks) - 1)])

    def _explore(
        self, best: Choice, choices: list[Choice], situation: Situation, costs: CostTable, ahead: Array
    ) -> Exploration | None:
        """What might be better than the plan, for all that is known, where trying it is affordable: of all K and
        proposers the one that promises most for what a try costs."""
        now = float(best.rate[best.ks[situation.running], situation.running])
        for daring in (False, True):  # what may well be first
            tries = [self._try(choice, best, situation, costs, now, daring) for choice in choices]
            found = max(tries, key=lambda one: one.worth)
            if found.worth > 0:
                break
        if found.worth <= 0 or found.gain * float(ahead.sum()) / now < found.lost:
            return None  # nothing is, or too little is left to pay for it
        share = self.explore_share if situation.rounds >= EARLY_ROUNDS else EARLY_SHARE
        every = 2 ** math.ceil(math.log2(found.rounds / share))  # so that a new plan does not begin the count anew
        if found.k and situation.acceptance[found.proposer].unseen:
            every = min(every, FIRST_TRY)
        return Exploration(
            k=found.k,
            proposer=found.proposer if found.k else "none",
            rounds=found.times,
            every=every,
            catch_up=None if best.proposer == "draft" and best.ks[situation.running] else trial_tokens(situation),
        )

    def _try(
        self, choice: Choice, best: Choice, situation: Situation, costs: CostTable, now: float, daring: bool
    ) -> _Try:
        """The K of a proposer, other than the plan's, that is most worth a try. `now`: the plan's tokens per second."""
        n, who = situation.running, choice.proposer
        hoped = rates(who, situation, costs, self.k, hope=True, daring=daring, at=slice(n, n + 1))[:, 0]
        gain = np.where(hoped > now * (1 + 2 * self.hysteresis), 1 - now / hoped, 0.0)
        if who == best.proposer:
            gain[best.ks[n]] = 0.0
        grid = costs.grid(proposer=who, max_k=self.k, slots=situation.slots, context=situation.context)
        drafting, catching_up, times = float(n), 0.0, 1
        if who == "draft" and situation.behind > 1 and not (best.proposer == "draft" and best.ks[n]):
            tokens = min(n * situation.behind, trial_tokens(situation))
            drafting, catching_up = tokens / situation.behind, tokens * costs.draft_token_s
            times = TRIES if situation.rounds >= EARLY_ROUNDS else 1
        made = n + drafting * (choice.tokens - 1)
        lost = times * np.maximum(0.0, grid.seconds[:, n] - made / now)
        lost[1:] += catching_up
        rounds = np.maximum(times, 2 * lost * now / (n * best.tokens[best.ks[n]]))
        k = int(np.argmax(gain / rounds))
        return _Try(who, k, times, float(gain[k]), float(lost[k]), float(rounds[k]))


def trial_tokens(situation: Situation) -> int:
    """What the draft model catches up for a round that explores: a few rows show as much as is needed."""
    return min(situation.prefill_budget, max(TRIAL_TOKENS, math.ceil(TRIAL_ROWS * situation.behind)))


def _must_look(best: Choice, situation: Situation) -> bool:
    """Whether to try the draft on a few rows before all are caught up: little is known of late, and much to pay."""
    n, plan = situation.running, situation.plan
    if best.proposer != "draft" or not best.ks[n] or (plan is not None and plan.proposer == "draft" and plan.k_for(n)):
        return False
    reached = situation.acceptance["draft"].reached
    return sum(reached[:1]) < LOOK_DRAFTS and n * situation.behind > LOOK_TRIALS * trial_tokens(situation)


def _least_ready(best: Choice, n: int) -> float:
    """Share of n rows with a draft from which on a round with drafts makes more tokens a second than a plain one."""
    k = int(best.ks[n])
    gain = best.tokens[k] - 1
    longer = best.tokens[k] * best.rate[0, n] / best.rate[k, n] - 1  # rate = n · tokens / seconds
    return float(np.clip(longer / gain, 0.0, MOST_READY)) if gain > 0 else 0.0
