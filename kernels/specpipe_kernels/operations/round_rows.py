"""Operations between the forward passes of a round, one launch each.

Slots hold the state of requests; each batch row of a round refers to one slot. B batch rows, K drafts at most, T tokens
per row and forward pass. Padding rows of a batch share one slot that is never active.
"""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import (
    MAX_DRAFTS,
    MAX_MATCH,
    Followed,
    ForwardTokens,
    OpenedRows,
    ReferenceTensors,
    RejectionOutput,
    SlotTensors,
)


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
    sources: Tensor | int,
    draft_steps: int,
) -> Tensor:
    """Writes the tokens of a round to the slots, up to a stop id or the limit: tokens, length, active, draft_valid.

    Args:
        state: of all slots, changed in place.
        slots: [B] int64.
        lengths: [B] int64, before the round.
        verdict: result of verifying the round's drafts.
        proposed: [B] int32, number of drafts that were verified.
        sources: [B] int32, or one number for all rows: copied to the result.
        draft_steps: steps of the draft model over the last two tokens and then the drafts, 0 to K. The keys and values
            that it has of a row with drafts, and had up to the last two tokens before the round, are then valid up to
            the accepted drafts, without the one of the last step, which it never processed.

    Returns [B, K + 7] int64: tokens (-1 beyond a row's emission), number of tokens, accepted drafts (before a stop id),
    proposed, status, source (0 without drafts), draft_valid.
    """
    function = implementation("rounds.commit_rows", slots)
    result: Tensor = function(state, slots, lengths, verdict, proposed, sources=sources, draft_steps=draft_steps)
    return result


def follow(
    tokens: Tensor,
    texts: ReferenceTensors,
    slots: Tensor,
    lengths: Tensor,
    max_drafts: Tensor,
    *,
    k: int,
    vocab_size: int,
    min_match: int,
    max_match: int = MAX_MATCH,
) -> Followed:
    """Returns what follows in each row's text behind the place with the longest match, and moves the row's anchor.

    A place matches as many tokens as precede it in the text and end the row alike, up to max_match. Of equal matches
    the place nearest to the expected one counts, lengths + anchor. Places with fewer than `min_match` tokens are left
    out, except for the expected one.

    Args:
        tokens: [S, C] int64, prompt and output of all slots.
        texts: of all slots; `anchor` is changed in place.
        slots: [B] int64.
        lengths: [B] int64, tokens of each row.
        max_drafts: [B] int32.
        k: drafts of a row, at most.
        vocab_size: drafts end before an id that is negative, or not below it.
        min_match: at least 1.
        max_match: at least min_match; a kernel is compiled for each.

    Raises ValueError for values and shapes other than these.
    """
    if not 1 <= k <= MAX_DRAFTS:
        raise ValueError(f"k={k}; expected 1 to {MAX_DRAFTS}")
    if not 1 <= min_match <= max_match:
        raise ValueError(f"min_match={min_match}, max_match={max_match}; expected at least 1, in this order")
    if texts.tokens.dim() != 2 or texts.tokens.stride(1) != 1:
        raise ValueError(f"texts.tokens {list(texts.tokens.shape)}; expected [S, T], T contiguous")
    function = implementation("rounds.follow", slots)
    result: Followed = function(
        tokens,
        texts,
        slots,
        lengths,
        max_drafts,
        k=k,
        vocab_size=vocab_size,
        min_match=min_match,
        max_match=max_match,
    )
    return result
