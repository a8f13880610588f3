"""What stands between the forwards of a round: a launch each, where separate operations would be a hundred.

Slots hold the state of requests; a batch row of a round names one. B batch rows, K drafts at most, T tokens fed. Rows
that pad a batch share a slot that is never active.
"""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import Fed, OpenedRows, RejectionOutput, SlotTensors


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """Gather what a round of K drafts needs to know about slots [B] int64; width: block-table columns to take."""
    result: OpenedRows = implementation("rounds.open_rows", slots)(state, slots, k=k, width=width)
    return result


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> Fed:
    """The T = width tokens of each row from position lengths + shift on.

    Committed ones come from the slot; those from `lengths` on are drafts [B, K] int64. A draft of -1 is fed as the
    row's last committed token: a harmless one, whatever the vocabulary holds elsewhere. last: the highest position
    that the model knows; drafts past a row's limit may stand beyond it, and their logits are never used.
    """
    if drafts is not None and drafts.stride(1) != 1:
        raise ValueError(f"drafts of strides {drafts.stride()}; expected [B, K], K contiguous")
    function = implementation("rounds.feed_rows", slots)
    result: Fed = function(state, slots, lengths, drafts, shift=shift, width=width, last=last)
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
    """Write what a round emitted to the slots, up to a stop id and the limit: tokens, length, active, draft_valid.

    verdict: of K drafts, of which proposed [B] int32 were verified. drafted: they came from the draft model, whose keys
    and values now reach as far as they were accepted; its last draft was never fed. Returns [B, K + 5] int64: tokens
    (-1 beyond a row's emission), how many, accepted drafts (before a stop id), proposed, status.
    """
    function = implementation("rounds.commit_rows", slots)
    result: Tensor = function(state, slots, lengths, verdict, proposed, drafted=drafted)
    return result
