"""What is worth a try: a K or a proposer that the plan would not take, but that may be better for all that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specpipe.core import Exploration, ProposerName
from specpipe.speculation.cost import CostTable
from specpipe.speculation.expected import Choice, Outlook, hoped_rates
from specpipe.speculation.policy import Situation

EXPLORE_SHARE = 0.01
"""Of all rounds, at most so much is spent on a K or a proposer that the plan would not take, and half as much of all
seconds, catching up included."""
EARLY_ROUNDS = 64
EARLY_SHARE = 1 / 16
"""In a worker's first rounds the share is larger: what is learnt then pays longest."""
FIRST_TRY = 16
"""Rounds until the first try of a proposer of which nothing is known, whatever it costs."""
TRIES = 4
"""Rounds of a try for which rows are caught up: that is paid once."""
TRIAL_TOKENS = 1024
TRIAL_ROWS = 4
"""Rows of mean length that the draft model catches up for a try; of shorter ones, which are nearest to it, more."""


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


def explore(
    best: Choice, choices: Sequence[Choice], outlook: Outlook, costs: CostTable, *, share: float, least_gain: float
) -> Exploration | None:
    """What might be better than the plan, for all that is known, where trying it is affordable: of all K and proposers
    the one that promises most for what a try costs. None: nothing is, or too little is left to pay for it.

    best: what the plan takes; share: of all rounds, at most; least_gain: what is less is not worth a try.
    """
    situation, n = outlook.situation, outlook.n
    now = float(best.rate[best.ks[n], n])
    tries = [_tries(choice, best, outlook, costs, now, least_gain) for choice in choices]
    likely, daring = (max(one, key=lambda one: one.worth) for one in zip(*tries, strict=True))
    found = likely if likely.worth > 0 else daring  # what may well be first
    if found.worth <= 0 or found.gain * float(outlook.ahead.sum()) / now < found.lost:
        return None
    every = 2 ** math.ceil(math.log2(found.rounds / share))  # so that a new plan does not begin the count anew
    if found.k and situation.acceptance[found.proposer].unseen:
        every = min(every, FIRST_TRY)
    return Exploration(
        k=found.k,
        proposer=found.proposer if found.k else "none",
        rounds=found.times,
        every=every,
        catch_up=None if best.proposer == "draft" and best.ks[n] else trial_tokens(situation),
    )


def _tries(
    choice: Choice, best: Choice, outlook: Outlook, costs: CostTable, now: float, least_gain: float
) -> tuple[_Try, _Try]:
    """The K of a proposer, other than the plan's, that is most worth a try, as `hoped_rates`: two answers. `now`: the
    plan's tokens per second."""
    situation, n, who = outlook.situation, outlook.n, choice.proposer
    hoped = hoped_rates(who, outlook, costs, len(choice.tokens) - 1)
    gain = np.where(hoped > now * (1 + least_gain), 1 - now / hoped, 0.0)
    if who == best.proposer:
        gain[:, best.ks[n]] = 0.0
    if not gain.any():
        nothing = _Try(who, 0, 1, 0.0, 0.0, 1.0)
        return nothing, nothing
    grid = costs.grid(proposer=who, max_k=len(choice.tokens) - 1, slots=situation.slots, context=situation.context)
    drafting, catching_up, times = float(n), 0.0, 1
    if who == "draft" and situation.behind > 1 and not (best.proposer == "draft" and best.ks[n]):
        tokens = min(n * situation.behind, trial_tokens(situation))
        drafting, catching_up = tokens / situation.behind, costs.draft_prefill.seconds(float(tokens), 1.0)
        times = TRIES if situation.rounds >= EARLY_ROUNDS else 1
    made = n + drafting * (choice.tokens - 1)
    lost = times * np.maximum(0.0, grid.seconds[:, n] - made / now)
    lost[1:] += catching_up
    rounds = np.maximum(times, 2 * lost * now / (n * best.tokens[best.ks[n]]))
    ks = (gain / rounds).argmax(axis=1)
    likely, daring = (
        _Try(who, int(k), times, float(gain[place, k]), float(lost[k]), float(rounds[k])) for place, k in enumerate(ks)
    )
    return likely, daring


def trial_tokens(situation: Situation) -> int:
    """What the draft model catches up for a round that explores: a few rows show as much as is needed."""
    return min(situation.prefill_budget, max(TRIAL_TOKENS, math.ceil(TRIAL_ROWS * situation.behind)))
