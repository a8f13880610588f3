"""What a policy may expect: tokens of a round, tokens per second, and what is still to be generated.

`hope` asks what may be for all that is known, rather than what is likely: it decides what is worth a try.
Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName
from specpipe.speculation.acceptance import Acceptance
from specpipe.speculation.cost import CostTable
from specpipe.speculation.policy import Situation

Array = npt.NDArray[np.float64]
HOPE = 0.85
"""Conditional acceptance that a position may turn out to have for all that is known, where little is."""
HOPE_WEIGHT = 16.0
HOPE_SECONDS = 0.3
"""Share by which a round that was never timed may be shorter than the cost table says."""


def expected_tokens(acceptance: Acceptance, max_k: int, *, hope: bool = False) -> Array:
    """→ [K + 1]: tokens that a row's round of K drafts yields, 1 + coverage · Σ_i Π_{j ≤ i} c_j."""
    conditional = acceptance.conditional(max_k)
    coverage = acceptance.coverage
    if hope:
        reached = np.zeros(max_k)
        known = acceptance.reached[:max_k]
        reached[: len(known)] = known
        share = HOPE_WEIGHT / (HOPE_WEIGHT + reached)
        conditional = np.maximum(conditional, conditional + share * (HOPE - conditional))
        coverage += (1 - coverage) * HOPE_WEIGHT / (HOPE_WEIGHT + acceptance.row_rounds)
    return np.concatenate([[1.0], 1.0 + coverage * np.cumsum(np.cumprod(conditional))])


def rates(proposer: ProposerName, situation: Situation, costs: CostTable, max_k: int, *, hope: bool = False) -> Array:
    """→ [K + 1, N + 1] tokens per second, the draft's prefill of new rows paid. Rows 0 read as 1."""
    slots, context = situation.slots, situation.context
    seconds = costs.grid(proposer=proposer, max_k=max_k, slots=slots, context=context)
    if hope:  # a round that was never timed may be as short as plain decoding, or all of it shorter than concluded
        unknown = 1 - costs.known(proposer=proposer, max_k=max_k, slots=slots, context=context)
        seconds = np.minimum(seconds - unknown * (seconds - seconds[0]), seconds * (1 - HOPE_SECONDS * unknown))
    tokens = expected_tokens(situation.acceptance[proposer], max_k, hope=hope)
    made = tokens[:, None] * np.maximum(np.arange(situation.slots + 1), 1)
    if proposer == "draft":
        prefill_s = situation.input_tokens / max(1.0, situation.output_tokens) * costs.draft_token_s
        seconds = seconds + prefill_s * made * (np.arange(max_k + 1) > 0)[:, None]
    return np.asarray(made / seconds)


def work_ahead(situation: Situation) -> Array:
    """→ [N + 1]: tokens that are still to be generated at each occupancy: the queue's at the present one, then those
    of the rows that run as they end one after the other, evenly."""
    n = situation.running
    rows = np.arange(situation.slots + 1)
    ahead = np.where(rows <= n, rows / n, 0.0) * situation.output_tokens
    ahead[n] += max(0.0, situation.queue_depth - n) * situation.output_tokens
    return ahead
