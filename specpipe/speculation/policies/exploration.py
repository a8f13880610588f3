"""Exploration: trial rounds of a K or proposer that the plan does not choose but that may be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.core import Exploration, ProposerName
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.throughput import ProposerChoice, RemainingWork, expected_tokens, prefill_s

EXPLORE_SHARE = 0.01
"""Largest share of rounds spent on trials. Of the seconds, with catching up, at most half of this share is lost."""
EARLY_ROUNDS = 64
EARLY_SHARE = 1 / 16
"""Share of trials in a worker's first EARLY_ROUNDS rounds: their evidence is of use for longest."""
FIRST_INTERVAL = 16
"""Largest interval in rounds until the first trial of a proposer without evidence, or of new rows, at any cost."""
MAX_INTERVAL = 4096
"""Largest interval between trials, in rounds: the estimated cost of a trial may be wrong too."""
TRIAL_ROUNDS = 4
"""Rounds of a trial that needs catching up, which is paid once a trial."""
TRIAL_TOKENS = 1024
"""Smallest number of tokens that a trial catches up."""
TRIAL_ROWS = 4
"""Rows of mean length that the draft model catches up for a trial. Shorter rows come first."""
OPTIMISTIC_SECONDS = 0.1
"""Largest relative error assumed for the seconds of a round that was never timed; after n timed rounds near by it is
divided by √(n + 1)."""


class _Trial(NamedTuple):
    """One candidate for a trial."""

    proposer: ProposerName
    k: int
    times: int
    """Consecutive rounds."""
    gain: float
    """Optimistic share of time saved."""
    lost: float
    """Expected loss in seconds."""
    rounds: float
    """Rounds charged to the budget."""


def explore(
    best: ProposerChoice,
    choices: Sequence[ProposerChoice],
    work: RemainingWork,
    costs: CostTable,
    *,
    share: float,
    min_gain: float,
) -> Exploration | None:
    """Returns the trial with the best ratio of optimistic gain to cost, or None if no trial is worth its cost.

    best: the plan's choice; share: largest share of rounds for trials; min_gain: smallest relative gain of interest.
    """
    inputs, n = work.inputs, work.n
    now = float(best.token_s[best.ks[n], n])
    for ignore_costs in (False, True):  # plausible trials first
        limits = (best, work, costs, now / (1 + min_gain), ignore_costs)
        trials = [trial for choice in choices for trial in _trials(choice, *limits)]
        if trials:
            break
    else:
        return None
    found = max(trials, key=lambda trial: trial.gain / trial.rounds)
    if found.gain * float(work.ahead.sum()) * now < found.lost:
        return None
    every = 2 ** math.ceil(math.log2(found.rounds / share))  # a power of 2, so that most new plans keep the phase
    every = min(every, MAX_INTERVAL)
    if found.k and (inputs.plan is None or inputs.acceptance[found.proposer].has_no_data):
        every = min(every, FIRST_INTERVAL)
    return Exploration(
        k=found.k,
        proposer=found.proposer if found.k else "none",
        rounds=found.times,
        every=every,
        catch_up=None if best.proposer == "draft" and best.ks[n] else trial_tokens(inputs),
    )


def _trials(
    choice: ProposerChoice,
    best: ProposerChoice,
    work: RemainingWork,
    costs: CostTable,
    max_token_s: float,
    ignore_costs: bool,
) -> Iterator[_Trial]:
    """Yields each K of a proposer, other than the plan's, whose optimistic seconds per token are below `max_token_s`.

    ignore_costs: assume that rounds that were never timed take as long as plain decoding and that draft prefills are
    free. Such trials correct cost estimates that are far off.
    """
    inputs, n, proposer = work.inputs, work.n, choice.proposer
    drafting, catching_up, times = float(n), 0.0, 1
    if proposer == "draft" and inputs.behind > 1 and not (best.proposer == "draft" and best.ks[n]):
        tokens = min(n * inputs.behind, trial_tokens(inputs))
        drafting, catching_up = tokens / inputs.behind, costs.draft_prefill.seconds(float(tokens), 1.0)
        times = TRIAL_ROUNDS if inputs.rounds >= EARLY_ROUNDS else 1
    optimistic_tokens = expected_tokens(inputs.acceptance[proposer], len(choice.tokens) - 1, optimistic=True)
    grid = costs.grid(proposer=proposer, max_k=len(optimistic_tokens) - 1, slots=inputs.slots, context=inputs.context)
    prefill = 0.0 if ignore_costs else prefill_s(proposer, inputs, costs) * float(work.new[n])
    now, now_k = float(best.token_s[best.ks[n], n]), int(best.ks[n])
    plain = float(grid.seconds[0, n])
    for k, (seconds, known) in enumerate(zip(grid.seconds[:, n].tolist(), grid.known[:, n].tolist(), strict=True)):
        optimistic_s = seconds * (1 - OPTIMISTIC_SECONDS * math.sqrt(1 - known))
        if ignore_costs:
            optimistic_s = min(optimistic_s, seconds - (1 - known) * (seconds - plain))
        token_s = optimistic_s / (n * optimistic_tokens[k]) + (prefill if k else 0.0)
        if token_s >= max_token_s or (proposer == best.proposer and k == now_k):
            continue
        expected = n + drafting * (choice.tokens[k] - 1)
        lost = times * max(0.0, seconds - expected * now) + (catching_up if k else 0.0)
        rounds = max(float(times), 2 * lost / (now * n * best.tokens[now_k]))
        yield _Trial(proposer, k, times, 1 - token_s / now, lost, rounds)


def trial_tokens(inputs: PolicyInputs) -> int:
    """Returns the tokens that the draft model catches up for a trial: enough for a few rows."""
    return min(inputs.prefill_budget, max(TRIAL_TOKENS, math.ceil(TRIAL_ROWS * inputs.behind)))
