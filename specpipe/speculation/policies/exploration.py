"""Exploration: trial rounds of a K or proposer that the plan does not choose but that may be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.core import Exploration, ProposerName
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_model import RoundWork
from specpipe.speculation.policies.policy import REPLAN_ROUNDS

HOPED_ACCEPTANCE = 0.85
"""Acceptance that a trial of a position seldom observed may find."""
GAIN_SHARE = 0.02
"""Largest share of the possible gain that is spent on trials."""
FIRST_ROUNDS = 4
"""Rounds from one trial to the next until a measurement of the job confirms a proposer's estimate."""
DUE = 4.0
"""Growth of the measured rounds since then from which the proposer is tried again: bursts of load mislead."""

WITH_DRAFT_MODEL: tuple[ProposerName, ...] = ("draft", "joined")
"""Proposers that run the draft model, which has to catch up first."""


class DraftRates(NamedTuple):
    """Estimates of one proposer."""

    proposer: ProposerName
    rate: Array
    """[K + 1, N + 1] expected tokens per second."""
    tokens: Array
    """[K + 1] expected tokens of a row's round."""
    seconds: Array
    """[K + 1, N + 1] seconds of a round."""


def explore(best: DraftRates, k: int, choices: Sequence[DraftRates], inputs: PolicyInputs) -> tuple[Exploration, ...]:
    """Returns the best trial of each proposer and of plain decoding, the rarest first.

    best, k: proposer and K of the plan.
    """
    soonest: dict[ProposerName, tuple[float, float, int]] = {}
    for name, trial in (one for choice in choices for one in _trials(choice, best, k, inputs)):
        soonest[name] = min(trial, soonest.get(name, trial))
    catch_up = None if best.proposer in WITH_DRAFT_MODEL and k else math.ceil(inputs.behind)  # of one row
    return tuple(  # powers of 2, so that most new plans keep the phase
        Exploration(k=trial_k, proposer=name, every=2 ** math.floor(math.log2(every)), catch_up=catch_up)
        for (every, _, trial_k), name in sorted(((trial, name) for name, trial in soonest.items()), reverse=True)
        if every < math.inf
    )


def _trials(
    choice: DraftRates, best: DraftRates, now_k: int, inputs: PolicyInputs
) -> Iterator[tuple[ProposerName, tuple[float, float, int]]]:
    """Yields for each K of a proposer, other than the plan's, its proposer or "none" and the trial.

    Trial: rounds from one to the next, infinite if it cannot be faster than the plan; share of time that it costs with
    the acceptance and seconds to hope for, negative if it may be faster; K.
    """
    n, proposer = inputs.running, choice.proposer
    now, round_s = float(best.rate[now_k, n]), float(best.seconds[now_k, n])
    hoped = inputs.acceptance[proposer].tokens(len(choice.tokens) - 1, hope=HOPED_ACCEPTANCE).tolist()
    ks, of_rows = np.arange(float(len(hoped))), (float(n), n * inputs.context)
    sd = inputs.costs.ratio_sd(RoundWork(proposer, ks, *of_rows), RoundWork(best.proposer, now_k, *of_rows)).tolist()
    drafting, catch_up_s, charge_s = n, 0.0, 0.0
    if proposer in WITH_DRAFT_MODEL:
        charge_s = inputs.prefill_s * inputs.missing_per_token
        if inputs.behind > 1 and not (best.proposer in WITH_DRAFT_MODEL and now_k):
            drafting, catch_up_s = 1, inputs.behind * inputs.prefill_s
    for k, seconds in enumerate(choice.seconds[:, n].tolist()):
        if k == now_k and (proposer == best.proposer or not k):
            continue
        name: ProposerName = proposer if k else "none"
        loss = now * (seconds * math.exp(-sd[k]) / (n * hoped[k]) + (charge_s if k else 0.0)) - 1
        lost_s = seconds - (n + drafting * (float(choice.tokens[k]) - 1)) / now + (catch_up_s if k else 0.0)
        every = max(REPLAN_ROUNDS, lost_s / round_s / (GAIN_SHARE * -loss)) if loss < 0 else math.inf
        due = inputs.costs.rounds >= DUE * inputs.costs.confirmed.get(name, 0.0)
        if due and name != (best.proposer if now_k else "none"):
            every = FIRST_ROUNDS
        yield name, (every, loss, k)
