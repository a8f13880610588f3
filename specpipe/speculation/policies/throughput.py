"""Expected tokens of a round, seconds per token, and the tokens that remain, by occupancy.

`optimistic` values are upper bounds that the evidence still allows. They decide which choices are worth a trial.
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
from specpipe.speculation.estimates.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.policy_inputs import PolicyInputs

OPTIMISTIC_ACCEPTANCE = 0.85
"""Optimistic conditional acceptance of a position without observations."""
OPTIMISTIC_WEIGHT = 16.0
"""Observations at which half of the optimism is left."""
_FULL = 0.8  # share of the present occupancy below which no new rows are expected


class ProposerChoice(NamedTuple):
    """Best K of one proposer at every occupancy."""

    proposer: ProposerName
    ks: npt.NDArray[np.int64]
    """[N + 1] draft tokens by occupancy."""
    token_s: Array
    """[K + 1, N + 1] expected seconds per token."""
    tokens: tuple[float, ...]
    """K + 1 values: expected tokens of a row's round."""
    seconds: float
    """Expected seconds until the queue is done."""


class RemainingWork(NamedTuple):
    """Tokens that remain to be generated, by occupancy."""

    inputs: PolicyInputs
    n: int
    """Running rows."""
    ahead: Array
    """[N + 1] tokens to be generated at each occupancy: those of waiting rows at the present one, then those of running
    rows, which are assumed to end one after the other at even intervals."""
    new: Array
    """[N + 1] share of those tokens that belongs to rows without a slot yet."""

    @classmethod
    def of(cls, inputs: PolicyInputs) -> RemainingWork:
        """Returns the remaining work that the policy inputs imply."""
        n, rows = inputs.running, _rows(inputs.slots)
        waiting = max(0.0, inputs.queue_depth - n)
        new_last = min(1.0, waiting / n)  # share of waiting rows among those that run last
        last = min(inputs.output_tokens, 2 * inputs.left)
        ahead = rows * ((last + new_last * (inputs.output_tokens - last)) / n)
        ahead[n + 1 :] = 0.0
        ahead[n] += waiting * inputs.output_tokens
        new = np.ones(len(rows))
        new[: n + 1] = waiting / (waiting + 1)
        new[: math.ceil(_FULL * n)] = 0.0
        return cls(inputs, n, ahead, new)


@lru_cache(maxsize=64)  # one plan needs the same values several times
def expected_tokens(acceptance: AcceptanceEstimate, max_k: int, *, optimistic: bool = False) -> tuple[float, ...]:
    """Returns max_k + 1 values: expected tokens of a row's round of K drafts, 1 + coverage · Σ_i Π_{j ≤ i} c_j."""
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
    """Returns [K + 1, N + 1], including draft prefills of new rows; column 0 equals column 1.

    tokens: `expected_tokens`.
    """
    inputs = work.inputs
    grid = costs.grid(proposer=proposer, max_k=len(tokens) - 1, slots=inputs.slots, context=inputs.context)
    token_s = grid.seconds / (np.array(tokens)[:, None] * np.maximum(_rows(inputs.slots), 1.0))
    token_s[1:] += prefill_s(proposer, inputs, costs) * work.new
    return np.asarray(token_s)


def prefill_s(proposer: ProposerName, inputs: PolicyInputs, costs: CostTable) -> float:
    """Returns the seconds of a new row's draft prefill per token of its output."""
    if proposer != "draft":
        return 0.0
    # Rows that get slots together share a forward.
    forwards = max(1 / admission_batch(inputs.slots), inputs.input_tokens / inputs.prefill_budget)
    return costs.draft_prefill.seconds(inputs.input_tokens, forwards) / max(1.0, inputs.output_tokens)


@lru_cache(maxsize=16)
def _rows(slots: int) -> Array:
    """Returns [N + 1]: 0 … N."""
    return np.arange(slots + 1.0)
