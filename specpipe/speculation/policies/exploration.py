"""Exploration: trial rounds of a K or proposer that the plan does not choose but that may be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.arrays import Array
from specpipe.core import Exploration, ProposerName
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.policy import REPLAN_ROUNDS

HOPED_ACCEPTANCE, HOPE_WEIGHT = 0.85, 16.0
"""Acceptance that a trial may find, and the observations of a position at which half of this hope is left."""
GAIN_SHARE = 0.02
"""Largest share of the possible gain that is spent on trials."""
LEAST_PRICE = 0.3
"""Price of a trial, in rounds, at least: what is expected to cost nothing may yet."""
DUE = 4.0
"""Growth of the measured rounds since the estimate of a proposer was confirmed, from which it is tried in any case."""
FIRST_ROUNDS = 4
"""Rounds from one trial to the next while no estimate of a proposer was confirmed: a profile may be far off."""

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


class _Trial(NamedTuple):
    """One candidate for a trial."""

    every: float
    """Rounds from one trial to the next."""
    loss: float
    """Share of time that it costs at best: negative if it may be faster than the plan."""
    k: int
    proposer: ProposerName


def explore(best: DraftRates, k: int, choices: Sequence[DraftRates], inputs: PolicyInputs) -> Exploration | None:
    """Returns the trial to run soonest, or None if no other choice may be better.

    best, k: proposer and K of the plan.
    """
    trial = min((trial for choice in choices for trial in _trials(choice, best, k, inputs)), default=None)
    if trial is None or trial.every == math.inf:
        return None
    return Exploration(
        k=trial.k,
        proposer=trial.proposer if trial.k else "none",
        every=2 ** math.floor(math.log2(trial.every)),  # a power of 2, so that most new plans keep the phase
        catch_up=None if best.proposer in WITH_DRAFT_MODEL and k else math.ceil(inputs.behind),  # of one row
    )


def _trials(choice: DraftRates, best: DraftRates, now_k: int, inputs: PolicyInputs) -> Iterator[_Trial]:
    """Yields each K of a proposer, other than the plan's, as it would be with the acceptance to hope for."""
    n, proposer, costs = inputs.running, choice.proposer, inputs.costs
    now, round_s = float(best.rate[now_k, n]), float(best.seconds[now_k, n])
    hoped = inputs.acceptance[proposer].tokens(len(choice.tokens) - 1, hope=HOPED_ACCEPTANCE, hope_weight=HOPE_WEIGHT)
    drafting, catch_up_s, charge_s = n, 0.0, 0.0
    if proposer in WITH_DRAFT_MODEL:
        charge_s = inputs.prefill_s * inputs.missing_per_token
        if inputs.behind > 1 and not (best.proposer in WITH_DRAFT_MODEL and now_k):
            drafting, catch_up_s = 1, inputs.behind * inputs.prefill_s
    plan = costs.shares(proposer=best.proposer, max_k=now_k, rows=n, context=inputs.context)[:, -1:]
    shares = costs.shares(proposer=proposer, max_k=len(hoped) - 1, rows=n, context=inputs.context)
    sd = costs.sd(shares - plan).tolist()
    for k, seconds in enumerate(choice.seconds[:, n].tolist()):
        if k == now_k and (proposer == best.proposer or not k):
            continue
        token_s = seconds * math.exp(-sd[k]) / (n * hoped[k]) + (charge_s if k else 0.0)
        lost = seconds - (n + drafting * (float(choice.tokens[k]) - 1)) / now + (catch_up_s if k else 0.0)
        price, loss = max(LEAST_PRICE, lost / round_s), now * token_s - 1
        every = max(REPLAN_ROUNDS, price / (GAIN_SHARE * -loss)) if loss < 0 else math.inf
        name = proposer if k else "none"
        timed = costs.timed.get(name, 0.0)
        if name != (best.proposer if now_k else "none") and costs.rounds >= DUE * timed:
            every = REPLAN_ROUNDS if timed else FIRST_ROUNDS
        yield _Trial(every, loss, k, proposer)
