"""What is worth a try: a K or a proposer that the plan would not take, but that may be better for all that is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.core import Exploration, ProposerName
from specpipe.speculation.cost import CostTable
from specpipe.speculation.expected import Choice, Outlook, expected_tokens, prefill_s
from specpipe.speculation.policy import Situation

EXPLORE_SHARE = 0.01
"""Of all rounds, at most so much is spent on a K or a proposer that the plan would not take, and half as much of all
seconds, catching up included."""
EARLY_ROUNDS = 64
EARLY_SHARE = 1 / 16
"""In a worker's first rounds the share is larger: what is learnt then pays longest."""
FIRST_TRY = 16
"""Rounds until the first try of a proposer of which nothing is known, of any rows or of those that run, whatever it
costs."""
RARELY = 4096
"""Rounds until a try at most: what it is believed to cost may be wrong, too."""
TRIES = 4
"""Rounds of a try for which rows are caught up: that is paid once."""
TRIAL_TOKENS = 1024
TRIAL_ROWS = 4
"""Rows of mean length that the draft model catches up for a try; of shorter ones, which are nearest to it, more."""
HOPE_SECONDS = 0.1
"""Share by which a round that was never timed may be shorter than the cost table says; for one that was timed n times
near by, over √(n + 1)."""


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


def explore(
    best: Choice, choices: Sequence[Choice], outlook: Outlook, costs: CostTable, *, share: float, least_gain: float
) -> Exploration | None:
    """What might be better than the plan, for all that is known, where trying it is affordable: of all K and proposers
    the one that promises most for what a try costs. None: nothing is, or too little is left to pay for it.

    best: what the plan takes; share: of all rounds, at most; least_gain: what is less is not worth a try.
    """
    situation, n = outlook.situation, outlook.n
    now = float(best.a_token[best.ks[n], n])
    for daring in (False, True):  # what may well be first
        asked = (best, outlook, costs, now / (1 + least_gain), daring)
        tries = [one for choice in choices for one in _tries(choice, *asked)]
        if tries:
            break
    else:
        return None
    found = max(tries, key=lambda one: one.gain / one.rounds)
    if found.gain * float(outlook.ahead.sum()) * now < found.lost:
        return None
    every = 2 ** math.ceil(math.log2(found.rounds / share))  # so that a new plan does not begin the count anew
    every = min(every, RARELY)
    if found.k and (situation.plan is None or situation.acceptance[found.proposer].unseen):
        every = min(every, FIRST_TRY)
    return Exploration(
        k=found.k,
        proposer=found.proposer if found.k else "none",
        rounds=found.times,
        every=every,
        catch_up=None if best.proposer == "draft" and best.ks[n] else trial_tokens(situation),
    )


def _tries(
    choice: Choice, best: Choice, outlook: Outlook, costs: CostTable, most: float, daring: bool
) -> Iterator[_Try]:
    """Every K of a proposer, other than the plan's, that may well come to `most` seconds a token or less.

    daring: if, too, a round that was never timed is as short as plain decoding and the draft's prefill costs nothing:
    that finds out where what is believed of costs is wrong altogether.
    """
    situation, n, who = outlook.situation, outlook.n, choice.proposer
    drafting, catching_up, times = float(n), 0.0, 1
    if who == "draft" and situation.behind > 1 and not (best.proposer == "draft" and best.ks[n]):
        tokens = min(n * situation.behind, trial_tokens(situation))
        drafting, catching_up = tokens / situation.behind, costs.draft_prefill.seconds(float(tokens), 1.0)
        times = TRIES if situation.rounds >= EARLY_ROUNDS else 1
    hoped = expected_tokens(situation.acceptance[who], len(choice.tokens) - 1, hope=True)
    grid = costs.grid(proposer=who, max_k=len(hoped) - 1, slots=situation.slots, context=situation.context)
    prefill = 0.0 if daring else prefill_s(who, situation, costs) * float(outlook.new[n])
    now, now_k = float(best.a_token[best.ks[n], n]), int(best.ks[n])
    plain = float(grid.seconds[0, n])
    for k, (seconds, known) in enumerate(zip(grid.seconds[:, n].tolist(), grid.known[:, n].tolist(), strict=True)):
        least = seconds * (1 - HOPE_SECONDS * math.sqrt(1 - known))
        if daring:
            least = min(least, seconds - (1 - known) * (seconds - plain))
        a_token = least / (n * hoped[k]) + (prefill if k else 0.0)
        if a_token >= most or (who == best.proposer and k == now_k):
            continue
        made = n + drafting * (choice.tokens[k] - 1)
        lost = times * max(0.0, seconds - made * now) + (catching_up if k else 0.0)
        rounds = max(float(times), 2 * lost / (now * n * best.tokens[now_k]))
        yield _Try(who, k, times, 1 - a_token / now, lost, rounds)


def trial_tokens(situation: Situation) -> int:
    """What the draft model catches up for a round that explores: a few rows show as much as is needed."""
    return min(situation.prefill_budget, max(TRIAL_TOKENS, math.ceil(TRIAL_ROWS * situation.behind)))
