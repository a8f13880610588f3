"""What a policy may expect: tokens of a round, tokens per second, and what is still to be generated.

`hope` asks what may be for all that is known, rather than what is likely: it decides what is worth a try.
Shapes: N slots, K widest round; arrays are indexed by rows running, 0 … N, and by draft tokens, 0 … K.
"""

from __future__ import annotations

from functools import lru_cache

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
_FULL = 0.8  # of the present occupancy: fewer rows run only when no more come
HOPE_SECONDS = 0.1
"""Share by which a round that was never timed may be shorter than the cost table says; for one that was timed n times
near by, over √(n + 1)."""


@lru_cache(maxsize=64)  # a plan asks for the same several times
def expected_tokens(acceptance: Acceptance, max_k: int, *, hope: bool = False) -> Array:
    """→ [K + 1]: tokens that a row's round of K drafts yields, 1 + coverage · Σ_i Π_{j ≤ i} c_j. Read-only."""
    conditional = acceptance.conditional(max_k)
    coverage = acceptance.coverage
    if hope:
        reached = np.zeros(max_k)
        known = acceptance.reached[:max_k]
        reached[: len(known)] = known
        share = HOPE_WEIGHT / (HOPE_WEIGHT + reached)
        conditional = np.maximum(conditional, conditional + share * (HOPE - conditional))
        coverage += (1 - coverage) * HOPE_WEIGHT / (HOPE_WEIGHT + acceptance.row_rounds)
    tokens = np.concatenate([[1.0], 1.0 + coverage * np.cumsum(np.cumprod(conditional))])
    tokens.flags.writeable = False
    return tokens


def rates(
    proposer: ProposerName,
    situation: Situation,
    costs: CostTable,
    max_k: int,
    *,
    hope: bool = False,
    daring: bool = False,
    at: slice = slice(None),
) -> Array:
    """→ [K + 1, N + 1], or those rows of it, tokens per second, the draft's prefill of new rows paid. Rows 0 read as 1.

    daring: hope, too, that a round which was never timed is as short as plain decoding. Worth a try at most: it finds
    out where the cost table is wrong altogether.
    """
    grid = costs.grid(proposer=proposer, max_k=max_k, slots=situation.slots, context=situation.context)
    seconds = grid.seconds[:, at]
    if hope:
        unknown = 1 - grid.known[:, at]
        lower = seconds * (1 - HOPE_SECONDS * np.sqrt(unknown))
        seconds = np.minimum(lower, seconds - unknown * (seconds - seconds[0])) if daring else lower
    tokens = expected_tokens(situation.acceptance[proposer], max_k, hope=hope)
    made = tokens[:, None] * np.maximum(np.arange(situation.slots + 1)[at], 1)
    if proposer == "draft":
        prefill_s = situation.input_tokens / max(1.0, situation.output_tokens) * costs.draft_token_s
        seconds = seconds.copy()
        seconds[1:] += prefill_s * made[1:] * _new_rows(situation)[at]
    return np.asarray(made / seconds)


def _new_rows(situation: Situation) -> Array:
    """→ [N + 1]: share of what is generated at each occupancy that belongs to rows which have no slot yet."""
    n, rows = situation.running, np.arange(situation.slots + 1)
    waiting = max(0.0, situation.queue_depth - n)
    return np.where(rows > n, 1.0, np.where(rows >= _FULL * n, waiting / (waiting + 1), 0.0))


def work_ahead(situation: Situation) -> Array:
    """→ [N + 1]: tokens that are still to be generated at each occupancy: the queue's at the present one, then those
    of the rows that run as they end one after the other, evenly."""
    n = situation.running
    rows = np.arange(situation.slots + 1)
    ahead = np.where(rows <= n, rows / n, 0.0) * situation.output_tokens
    ahead[n] += max(0.0, situation.queue_depth - n) * situation.output_tokens
    return ahead
