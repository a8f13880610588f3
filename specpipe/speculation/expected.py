"""What a policy may expect: tokens of a round, tokens per second, and what is still to be generated.

`hope` asks what may be for all that is known, rather than what is likely: it decides what is worth a try.
Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class Choice(NamedTuple):
    """What one proposer would do."""

    proposer: ProposerName
    ks: npt.NDArray[np.int64]
    """[N + 1]."""
    a_token: Array
    """[K + 1, N + 1] expected seconds."""
    tokens: tuple[float, ...]
    """K + 1: expected of a row's round."""
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
        new_last = min(1.0, waiting / n)  # rows that run to the end are such that wait, or those that run
        last = min(situation.output_tokens, 2 * situation.left)
        ahead = rows * ((last + new_last * (situation.output_tokens - last)) / n)
        ahead[n + 1 :] = 0.0
        ahead[n] += waiting * situation.output_tokens
        new = np.ones(len(rows))
        new[: n + 1] = waiting / (waiting + 1)
        new[: math.ceil(_FULL * n)] = 0.0
        return cls(situation, n, ahead, new)


@lru_cache(maxsize=64)  # a plan asks for the same several times
def expected_tokens(acceptance: Acceptance, max_k: int, *, hope: bool = False) -> tuple[float, ...]:
    """→ K + 1: tokens that a row's round of K drafts yields, 1 + coverage · Σ_i Π_{j ≤ i} c_j."""
    product, tokens = acceptance.coverage, [1.0]
    if hope:
        product += (1 - product) * HOPE_WEIGHT / (HOPE_WEIGHT + acceptance.row_rounds)
    for i, c in enumerate(acceptance.conditional(max_k)):
        if hope and c < HOPE:
            reached = acceptance.reached[i] if i < len(acceptance.reached) else 0.0
            c += HOPE_WEIGHT / (HOPE_WEIGHT + reached) * (HOPE - c)
        product *= c
        tokens.append(tokens[-1] + product)
    return tuple(tokens)


def seconds_a_token(proposer: ProposerName, outlook: Outlook, costs: CostTable, tokens: Sequence[float]) -> Array:
    """→ [K + 1, N + 1], the draft's prefill of new rows paid. Rows 0 read as 1. tokens: `expected_tokens`."""
    situation = outlook.situation
    grid = costs.grid(proposer=proposer, max_k=len(tokens) - 1, slots=situation.slots, context=situation.context)
    a_token = grid.seconds / (np.array(tokens)[:, None] * np.maximum(_rows(situation.slots), 1.0))
    a_token[1:] += prefill_s(proposer, situation, costs) * outlook.new
    return np.asarray(a_token)


def prefill_s(proposer: ProposerName, situation: Situation, costs: CostTable) -> float:
    """Seconds that the draft's prefill of a new row costs a token of it."""
    if proposer != "draft":
        return 0.0
    # Rows that get slots together share a forward.
    forwards = max(1 / rows_at_once(situation.slots), situation.input_tokens / situation.prefill_budget)
    return costs.draft_prefill.seconds(situation.input_tokens, forwards) / max(1.0, situation.output_tokens)


@lru_cache(maxsize=16)
def _rows(slots: int) -> Array:
    """[N + 1]"""
    return np.arange(slots + 1.0)
