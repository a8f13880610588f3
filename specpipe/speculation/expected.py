"""What a policy may expect: tokens of a round, tokens per second, and what is still to be generated.

`hope` asks what may be for all that is known, rather than what is likely: it decides what is worth a try.
Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName, rows_at_once
from specpipe.speculation.acceptance import Acceptance
from specpipe.speculation.cost import CostTable
from specpipe.speculation.policy import Situation

Array = npt.NDArray[np.float64]
HOPE = 0.85
"""Conditional acceptance that a position may turn out to have for all that is known, where little is."""
HOPE_WEIGHT = 16.0
_FULL = 0.8  # of the present occupancy: fewer rows run only when no more come
HOPE_SECONDS = 0.1
"""Share by which a round that was never timed may be shorter than the cost table says; for one that was timed n times
near by, over √(n + 1)."""


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


class Outlook(NamedTuple):
    """What a situation says of every proposer."""

    situation: Situation
    n: int
    """Rows that run at once."""
    ahead: Array
    """[N + 1] tokens that are still to be generated at each occupancy: the queue's at the present one, then those of
    the rows that run as they end one after the other, evenly."""
    new: Array
    """[N + 1] share of what is generated at each occupancy that belongs to rows which have no slot yet."""

    @classmethod
    def of(cls, situation: Situation) -> Outlook:
        n, rows = situation.running, _rows(situation.slots)
        waiting = max(0.0, situation.queue_depth - n)
        ahead = rows * (situation.output_tokens / n)
        ahead[n + 1 :] = 0.0
        ahead[n] += waiting * situation.output_tokens
        new = np.ones(len(rows))
        new[: n + 1] = waiting / (waiting + 1)
        new[: math.ceil(_FULL * n)] = 0.0
        return cls(situation, n, ahead, new)


@lru_cache(maxsize=64)  # a plan asks for the same several times
def expected_tokens(acceptance: Acceptance, max_k: int, *, hope: bool = False) -> Array:
    """→ [K + 1]: tokens that a row's round of K drafts yields, 1 + coverage · Σ_i Π_{j ≤ i} c_j. Read-only."""
    coverage, tokens = acceptance.coverage, [1.0]
    if hope:
        coverage += (1 - coverage) * HOPE_WEIGHT / (HOPE_WEIGHT + acceptance.row_rounds)
    every = coverage
    for i, c in enumerate(acceptance.conditional(max_k)):
        if hope:
            reached = acceptance.reached[i] if i < len(acceptance.reached) else 0.0
            c = max(c, c + HOPE_WEIGHT / (HOPE_WEIGHT + reached) * (HOPE - c))
        every *= c
        tokens.append(tokens[-1] + every)
    out = np.array(tokens)
    out.flags.writeable = False
    return out


def rates(proposer: ProposerName, outlook: Outlook, costs: CostTable, max_k: int) -> Array:
    """→ [K + 1, N + 1] tokens per second, the draft's prefill of new rows paid. Rows 0 read as 1."""
    situation = outlook.situation
    grid = costs.grid(proposer=proposer, max_k=max_k, slots=situation.slots, context=situation.context)
    made = expected_tokens(situation.acceptance[proposer], max_k)[:, None] * np.maximum(_rows(situation.slots), 1.0)
    return np.asarray(made / _paid(proposer, outlook, costs, grid.seconds, made, outlook.new))


def hoped_rates(proposer: ProposerName, outlook: Outlook, costs: CostTable, max_k: int) -> Array:
    """→ [2, K + 1] tokens per second of the present occupancy, for all that is known: as they may well be, and if also
    a round that was never timed is as short as plain decoding. That is worth a try at most: it finds out where the cost
    table is wrong altogether.
    """
    situation, n = outlook.situation, outlook.n
    grid = costs.grid(proposer=proposer, max_k=max_k, slots=situation.slots, context=situation.context)
    seconds, unknown = grid.seconds[:, n], 1 - grid.known[:, n]
    lower = seconds * (1 - HOPE_SECONDS * np.sqrt(unknown))
    daring = np.minimum(lower, seconds - unknown * (seconds - seconds[0]))
    made = expected_tokens(situation.acceptance[proposer], max_k, hope=True) * n
    paid = _paid(proposer, outlook, costs, np.array([lower, daring]).T, made[:, None], outlook.new[n])
    return np.asarray(made / paid.T)


def _paid(
    proposer: ProposerName, outlook: Outlook, costs: CostTable, seconds: Array, made: Array, new: Array | float
) -> Array:
    """→ [K + 1, …] seconds, with the draft's prefill of new rows. made: tokens; new: share of them."""
    if proposer != "draft":
        return seconds
    situation = outlook.situation
    # Rows that get slots together share a forward.
    forwards = max(1 / rows_at_once(situation.slots), situation.input_tokens / situation.prefill_budget)
    prefill_s = costs.draft_prefill.seconds(situation.input_tokens, forwards) / max(1.0, situation.output_tokens)
    paid = seconds + made * (prefill_s * new)
    paid[0] = seconds[0]
    return paid


@lru_cache(maxsize=16)
def _rows(slots: int) -> Array:
    """[N + 1]"""
    return np.arange(slots + 1.0)
