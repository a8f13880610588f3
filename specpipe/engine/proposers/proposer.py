"""The protocol of proposers: sources of draft tokens for a round.

Every proposer runs inside a round: device operations only, no host sync, shapes given by (B, K).
Shapes: B batch rows, K draft tokens a row, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from specpipe.core import DRAFT_SOURCES, DraftSource
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import Bounds


def source_code(source: DraftSource) -> int:
    """Returns the number of a source of drafts on the device; 0 is the number of a row without drafts."""
    return DRAFT_SOURCES.index(source) + 1


class Proposal(NamedTuple):
    """Draft tokens of one round and the distributions that they were drawn from."""

    tokens: Tensor
    """[B, K] int64; entries beyond a row's K_i are undefined."""
    num_tokens: Tensor
    """[B] int32: K_i."""
    logits: Tensor | None = None
    """[B, K, V] before temperature; None for one-hot proposals and where verification compares tokens alone."""
    draft_rows: Tensor | None = None
    """[B] int64: row of `logits` of each batch row, -1 for one-hot proposals; None where each has its own. With it,
    logits, lse and bounds may have fewer than K positions."""
    lse: Tensor | None = None
    """[B, K] fp32: log-sum-exps computed by the draft steps; None where logits is None."""
    bounds: Bounds | None = None
    """[B, K] each: truncation bounds of the draft distributions; None where nothing is truncated."""
    sources: Tensor | int = source_code("ngram")
    """[B] int32: `source_code` of each row's drafts; or one number for all rows."""
    draft_steps: int = 0
    """Steps of the draft model, whose KV is then valid as far as the drafts of its steps are accepted."""


class Proposer(Protocol):
    """Proposes up to `rows.max_drafts` tokens a row from the committed prefix alone."""

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens for each of the B rows. Device operations only; nothing waits for the host."""
        ...
