"""Exploration: trial rounds of a K or proposer that the plan does not choose but that may be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.core import Exploration, ProposerName
from specpipe.speculation.estimates.policy_inputs import PolicyInputs

HOPED_ACCEPTANCE, HOPE_WEIGHT = 0.85, 16.0
"""Acceptance that a trial may find, and the observations of a position at which half of this hope is left."""
EXPLORE_SHARE = 0.005
"""Largest share of rounds spent on trials of hope, at twice their cost."""
FIRST_INTERVAL, MAX_INTERVAL = 16, 4096
"""Rounds until a proposer that is due is tried, and between two trials at most."""
DUE = 4.0
"""Growth of a worker's rounds since a proposer was last timed, from which it is due whatever the estimates say."""
TRIAL_ROUNDS = 2
"""Rounds of a trial that needs catching up, which is paid once."""


class DraftRates(NamedTuple):
    """Estimates of one proposer."""

    proposer: ProposerName
    rate: Array
    """[K + 1, N + 1] expected tokens per second."""
    tokens: Array
    """[K + 1] expected tokens of a row's round."""
    seconds: Array
    """[K + 1, N + 1] seconds of a round."""
    prefill_s: float
    """Seconds of a draft prefill per token."""


class _Trial(NamedTuple):
    """One candidate for a trial."""

    proposer: ProposerName
    k: int
    times: int
    """Consecutive rounds."""
    gain: float
    """Share of time that it may save."""
    rounds: float
    """Rounds charged to the budget."""


def explore(best: DraftRates, k: int, choices: Sequence[DraftRates], inputs: PolicyInputs) -> Exploration | None:
    """Returns the trial with the highest ratio of possible gain to cost, or None if no other choice may be better.

    best, k: proposer and K of the plan.
    """
    trials = [trial for choice in choices for trial in _trials(choice, best, k, inputs)]
    due = [trial for trial in trials if _is_due(trial, best.proposer if k else "none", inputs)]
    hopeful = [trial for trial in trials if trial.gain > 0]
    if due:
        found, every = max(due, key=lambda trial: trial.gain), float(FIRST_INTERVAL)
    elif hopeful:
        found = max(hopeful, key=lambda trial: trial.gain / trial.rounds)
        every = min(max(found.rounds / EXPLORE_SHARE, 2 * found.times), MAX_INTERVAL)
    else:
        return None
    return Exploration(
        k=found.k,
        proposer=found.proposer if found.k else "none",
        rounds=found.times,
        every=2 ** math.floor(math.log2(every)),  # a power of 2, so that most new plans keep the phase
        catch_up=None if best.proposer == "draft" and k else _trial_tokens(inputs),
    )


def _is_due(trial: _Trial, now: ProposerName, inputs: PolicyInputs) -> bool:
    """True if the trial is of another proposer than `now`, and that one has not been timed for long."""
    name = trial.proposer if trial.k else "none"
    timed = inputs.timed.get(name, 0.0)
    return name != now and inputs.rounds >= min(DUE * timed, timed + MAX_INTERVAL)


def _trials(choice: DraftRates, best: DraftRates, now_k: int, inputs: PolicyInputs) -> Iterator[_Trial]:
    """Yields each K of a proposer, other than the plan's, that may be better than the plan."""
    n, proposer = inputs.running, choice.proposer
    now, round_s = float(best.rate[now_k, n]), float(best.seconds[now_k, n])
    hoped = inputs.acceptance[proposer].tokens(len(choice.tokens) - 1, hope=HOPED_ACCEPTANCE, hope_weight=HOPE_WEIGHT)
    gains = 1 - now * choice.seconds[:, n] / (n * np.array(hoped))
    drafting, catch_up_s, times = float(n), 0.0, 1
    if proposer == "draft" and inputs.behind > 1 and not (best.proposer == "draft" and now_k):
        tokens = min(n * inputs.behind, _trial_tokens(inputs))
        drafting, catch_up_s, times = tokens / inputs.behind, tokens * choice.prefill_s, TRIAL_ROUNDS
    for k, gain in enumerate(gains.tolist()):
        if k == now_k and (proposer == best.proposer or not k):
            continue
        expected = n + drafting * (float(choice.tokens[k]) - 1)
        lost = times * max(0.0, float(choice.seconds[k, n]) - expected / now) + (catch_up_s if k else 0.0)
        yield _Trial(proposer, k, times, gain, max(float(times), 2 * lost / round_s))


def _trial_tokens(inputs: PolicyInputs) -> int:
    """Returns the tokens that the draft model catches up for a trial: the square root of the rows, of mean length."""
    return min(inputs.prefill_budget, math.ceil(math.sqrt(inputs.running) * inputs.behind))
