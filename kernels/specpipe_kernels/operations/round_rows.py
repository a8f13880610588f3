"""Operations between the forward passes of a round, one launch each.

Slots hold the state of requests; each batch row of a round refers to one slot. B batch rows, K drafts at most, T tokens
per row and forward pass. Padding rows of a batch share one slot that is never active.
"""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import ForwardTokens, OpenedRows, RejectionOutput, SlotTensors


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """Gathers the state of `slots` [B] int64 for a round of K drafts. width: number of block-table columns to copy."""
    result: OpenedRows = implementation("rounds.open_rows", slots)(state, slots, k=k, width=width)
    return result


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> ForwardTokens:
    """Lays out the T = width tokens of each row that start at position lengths + shift.

    Positions below `lengths` [B] int64 take committed tokens from the slot, the others drafts [B, K] int64. A draft of
    -1 is replaced by the row's last committed token, which every vocabulary contains. last: the highest position that
    the model supports. Drafts past a row's limit may stand beyond it; their logits are never used.

    Raises ValueError for drafts whose last dimension is not contiguous.
    """
    if drafts is not None and drafts.stride(1) != 1:
        raise ValueError(f"drafts of strides {drafts.stride()}; expected [B, K], K contiguous")
    function = implementation("rounds.feed_rows", slots)
    result: ForwardTokens = function(state, slots, lengths, drafts, shift=shift, width=width, last=last)
    return result


def commit_rows(
    state: SlotTensors,
    slots: Tensor,
    lengths: Tensor,
    verdict: RejectionOutput,
    proposed: Tensor,
    *,
    drafted: bool,
) -> Tensor:
    """Writes the tokens of a round to the slots, up to a stop id or the limit: tokens, length, active, draft_valid.

    Args:
        state: of all slots, changed in place.
        slots: [B] int64.
        lengths: [B] int64, before the round.
        verdict: result of verifying the round's drafts.
        proposed: [B] int32, number of drafts that were verified.
        drafted: the draft model proposed them. The keys and values that it has of a row with drafts are then valid up
            to the accepted ones, without the last draft, which it never processed.

    Returns [B, K + 5] int64: tokens (-1 beyond a row's emission), number of tokens, accepted drafts (before a stop id),
    proposed, status.
    """
    function = implementation("rounds.commit_rows", slots)
    result: Tensor = function(state, slots, lengths, verdict, proposed, drafted=drafted)
    return result
