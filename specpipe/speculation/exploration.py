"""What is worth a try: a K or a proposer that the plan would not take, but that may be better for all that is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.core import Exploration, ProposerName
from specpipe.speculation.cost_table import CostTable
from specpipe.speculation.policy import PolicyInputs
from specpipe.speculation.throughput import ProposerChoice, RemainingWork, expected_tokens, prefill_s

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
"""Rounds until a try at most: what it is cap_s to cost may be wrong, too."""
TRIES = 4
"""Rounds of a try for which rows are caught up: that is paid once."""
TRIAL_TOKENS = 1024
TRIAL_ROWS = 4
"""Rows of mean length that the draft model catches up for a try; of shorter ones, which are nearest to it, more."""
OPTIMISTIC_SECONDS = 0.1
"""Share by which a round that was never timed may be shorter than the cost table says; for one that was timed n times
near by, over √(n + 1)."""


class _Trial(NamedTuple):
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
    best: ProposerChoice,
    choices: Sequence[ProposerChoice],
    work: RemainingWork,
    costs: CostTable,
    *,
    share: float,
    least_gain: float,
) -> Exploration | None:
    """What might be better than the plan, for all that is known, where trying it is affordable: of all K and proposers
    the one that promises most for what a try costs. None: nothing is, or too little is left to pay for it.

    best: what the plan takes; share: of all rounds, at most; least_gain: what is less is not worth a try.
    """
    inputs, n = work.inputs, work.n
    now = float(best.token_s[best.ks[n], n])
    for daring in (False, True):  # what may well be first
        asked = (best, work, costs, now / (1 + least_gain), daring)
        tries = [one for choice in choices for one in _trials(choice, *asked)]
        if tries:
            break
    else:
        return None
    found = max(tries, key=lambda one: one.gain / one.rounds)
    if found.gain * float(work.ahead.sum()) * now < found.lost:
        return None
    every = 2 ** math.ceil(math.log2(found.rounds / share))  # so that a new plan does not begin the count anew
    every = min(every, RARELY)
    if found.k and (inputs.plan is None or inputs.acceptance[found.proposer].has_no_data):
        every = min(every, FIRST_TRY)
    return Exploration(
        k=found.k,
        proposer=found.proposer if found.k else "none",
        rounds=found.times,
        every=every,
        catch_up=None if best.proposer == "draft" and best.ks[n] else trial_tokens(inputs),
    )


def _trials(
    choice: ProposerChoice, best: ProposerChoice, work: RemainingWork, costs: CostTable, most: float, daring: bool
) -> Iterator[_Trial]:
    """Every K of a proposer, other than the plan's, that may well come to `most` seconds a token or less.

    daring: if, too, a round that was never timed is as short as plain decoding and the draft's prefill costs nothing:
    that finds out where what is cap_s of costs is wrong altogether.
    """
    inputs, n, who = work.inputs, work.n, choice.proposer
    drafting, catching_up, times = float(n), 0.0, 1
    if who == "draft" and inputs.behind > 1 and not (best.proposer == "draft" and best.ks[n]):
        tokens = min(n * inputs.behind, trial_tokens(inputs))
        drafting, catching_up = tokens / inputs.behind, costs.draft_prefill.seconds(float(tokens), 1.0)
        times = TRIES if inputs.rounds >= EARLY_ROUNDS else 1
    optimistic_tokens = expected_tokens(inputs.acceptance[who], len(choice.tokens) - 1, optimistic=True)
    grid = costs.grid(proposer=who, max_k=len(optimistic_tokens) - 1, slots=inputs.slots, context=inputs.context)
    prefill = 0.0 if daring else prefill_s(who, inputs, costs) * float(work.new[n])
    now, now_k = float(best.token_s[best.ks[n], n]), int(best.ks[n])
    plain = float(grid.seconds[0, n])
    for k, (seconds, known) in enumerate(zip(grid.seconds[:, n].tolist(), grid.known[:, n].tolist(), strict=True)):
        least = seconds * (1 - OPTIMISTIC_SECONDS * math.sqrt(1 - known))
        if daring:
            least = min(least, seconds - (1 - known) * (seconds - plain))
        token_s = least / (n * optimistic_tokens[k]) + (prefill if k else 0.0)
        if token_s >= most or (who == best.proposer and k == now_k):
            continue
        made = n + drafting * (choice.tokens[k] - 1)
        lost = times * max(0.0, seconds - made * now) + (catching_up if k else 0.0)
        rounds = max(float(times), 2 * lost / (now * n * best.tokens[now_k]))
        yield _Trial(who, k, times, 1 - token_s / now, lost, rounds)


def trial_tokens(inputs: PolicyInputs) -> int:
    """What the draft model catches up for a round that explores: a few rows show as much as is needed."""
    return min(inputs.prefill_budget, max(TRIAL_TOKENS, math.ceil(TRIAL_ROWS * inputs.behind)))
