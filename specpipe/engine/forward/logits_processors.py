"""Edits of logits before a token is drawn from them, alike in target and draft, so that verification stays exact.

Shapes: B rows, T positions a row, K draft tokens a row, V vocabulary. Device operations only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import apply_penalties, count_tokens


def mask_eos(logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor) -> None:
    """Sets logits of end-of-sequence and stop ids to -inf, in place, while a row has fewer than its min_tokens.

    logits [B * T, V]; slots [B] int64; positions [B, T] int64: position of the token drawn from each row of logits.
    p and q are then the distributions of a sampler that never ends a row early, as transformers'
    MinNewTokensLengthLogitsProcessor makes them.
    """
    ids = state.stop_ids[slots][:, None, :].expand(-1, positions.shape[1], -1)
    masked = (positions < state.min_length[slots][:, None])[:, :, None] & (ids >= 0) & (ids < logits.shape[1])
    # Unused entries are clamped to a valid id and share its index: a minimum with +inf leaves that logit as it is.
    values = torch.where(masked, -torch.inf, torch.inf).to(logits.dtype)
    logits.scatter_reduce_(1, ids.clamp(0, logits.shape[1] - 1).flatten(0, 1), values.flatten(0, 1), reduce="amin")


def penalise(logits: Tensor, state: SlotState, rows: RoundRows, drafts: Tensor, *, first: int = 0) -> None:
    """Applies the rows' penalties to logits [B * T, V], in place; nothing if no row has any.

    drafts [B, K] int64: row i of a request's logits follows its committed tokens and first + i of its drafts.
    """
    if rows.penalties is not None:
        apply_penalties(logits, state.tokens, state.seen, rows.slots, rows.lengths, rows.penalties, drafts, first=first)


def count_committed(state: SlotState, rows: RoundRows, committed: Tensor) -> None:
    """Adds a round's committed tokens [B, K + 1] int64, -1 beyond a row's emission, to the counts of penalties."""
    if rows.penalties is not None:
        count_tokens(state.tokens, state.seen, rows.slots, rows.lengths, rows.penalties, committed)
