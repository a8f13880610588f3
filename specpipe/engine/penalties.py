"""Penalties within a round: on the draft's logits and on the target's alike."""

from __future__ import annotations

from torch import Tensor

from specpipe.engine.forward import RoundRows
from specpipe.engine.slots import SlotState
from specpipe_kernels import apply_penalties, count_tokens


def penalise(logits: Tensor, state: SlotState, rows: RoundRows, drafts: Tensor, *, first: int = 0) -> None:
    """Edits logits [B * T, V] in place; row i of a request follows first + i of `drafts` [B, K]."""
    if rows.penalties is not None:
        apply_penalties(logits, state.tokens, state.seen, rows.slots, rows.lengths, rows.penalties, drafts, first=first)


def remember(state: SlotState, rows: RoundRows, committed: Tensor) -> None:
    """Counts the tokens [B, K + 1] that a round committed, -1 beyond a row's emission."""
    if rows.penalties is not None:
        count_tokens(state.tokens, state.seen, rows.slots, rows.lengths, rows.penalties, committed)
