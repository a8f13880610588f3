"""What a policy may expect: tokens of a round, tokens per second, and what is still to be generated.

`optimistic` asks what may be for all that is known, rather than what is likely: it decides what is worth a try.
Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName, admission_batch
from specpipe.speculation.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.cost_table import CostTable
from specpipe.speculation.policy import PolicyInputs

OPTIMISTIC_ACCEPTANCE = 0.85
"""Conditional acceptance that a position may turn out to have for all that is known, where little is."""
OPTIMISTIC_WEIGHT = 16.0
_FULL = 0.8  # of the present occupancy: fewer rows run only when no more come


class ProposerChoice(NamedTuple):
    """What one proposer would do."""

    proposer: ProposerName
    ks: npt.NDArray[np.int64]
    """[N + 1]."""
    token_s: Array
    """[K + 1, N + 1] expected seconds."""
    tokens: tuple[float, ...]
    """K + 1: expected of a row's round."""
    seconds: float
    """Until all that waits is done."""


class RemainingWork(NamedTuple):
    """Work that the policy inputs leave to be done, by occupancy."""

    inputs: PolicyInputs
    n: int
    """Rows that run at once."""
    ahead: Array
    """[N + 1] tokens that are still to be generated at each occupancy: the queue's at the present one, then those of
    the rows that run as they end one after the other, evenly."""
    new: Array
    """[N + 1] share of what is generated at each occupancy that belongs to rows which have no slot yet."""

    @classmethod
    def of(cls, inputs: PolicyInputs) -> RemainingWork:
        n, rows = inputs.running, _rows(inputs.slots)
        waiting = max(0.0, inputs.queue_depth - n)
        new_last = min(1.0, waiting / n)  # rows that run to the end are such that wait, or those that run
        last = min(inputs.output_tokens, 2 * inputs.left)
        ahead = rows * ((last + new_last * (inputs.output_tokens - last)) / n)
        ahead[n + 1 :] = 0.0
        ahead[n] += waiting * inputs.output_tokens
        new = np.ones(len(rows))
        new[: n + 1] = waiting / (waiting + 1)
        new[: math.ceil(_FULL * n)] = 0.0
        return cls(inputs, n, ahead, new)


@lru_cache(maxsize=64)  # a plan asks for the same several times
def expected_tokens(acceptance: AcceptanceEstimate, max_k: int, *, optimistic: bool = False) -> tuple[float, ...]:
    """→ K + 1: tokens that a row's round of K drafts yields, 1 + coverage · Σ_i Π_{j ≤ i} c_j."""
    product, tokens = acceptance.coverage, [1.0]
    if optimistic:
        product += (1 - product) * OPTIMISTIC_WEIGHT / (OPTIMISTIC_WEIGHT + acceptance.row_rounds)
    for i, c in enumerate(acceptance.conditional(max_k)):
        if optimistic and c < OPTIMISTIC_ACCEPTANCE:
            reached = acceptance.reached[i] if i < len(acceptance.reached) else 0.0
            c += OPTIMISTIC_WEIGHT / (OPTIMISTIC_WEIGHT + reached) * (OPTIMISTIC_ACCEPTANCE - c)
        product *= c
        tokens.append(tokens[-1] + product)
    return tuple(tokens)


def seconds_per_token(proposer: ProposerName, work: RemainingWork, costs: CostTable, tokens: Sequence[float]) -> Array:
    """→ [K + 1, N + 1], the draft's prefill of new rows paid. Rows 0 read as 1. tokens: `expected_tokens`."""
    inputs = work.inputs
    grid = costs.grid(proposer=proposer, max_k=len(tokens) - 1, slots=inputs.slots, context=inputs.context)
    token_s = grid.seconds / (np.array(tokens)[:, None] * np.maximum(_rows(inputs.slots), 1.0))
    token_s[1:] += prefill_s(proposer, inputs, costs) * work.new
    return np.asarray(token_s)


def prefill_s(proposer: ProposerName, inputs: PolicyInputs, costs: CostTable) -> float:
    """Seconds that the draft's prefill of a new row costs a token of it."""
    if proposer != "draft":
        return 0.0
    # Rows that get slots together share a forward.
    forwards = max(1 / admission_batch(inputs.slots), inputs.input_tokens / inputs.prefill_budget)
    return costs.draft_prefill.seconds(inputs.input_tokens, forwards) / max(1.0, inputs.output_tokens)


@lru_cache(maxsize=16)
def _rows(slots: int) -> Array:
    """[N + 1]"""
    return np.arange(slots + 1.0)
