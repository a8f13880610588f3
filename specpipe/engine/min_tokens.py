"""Rows that may not end yet: until a row has `min_tokens`, the tokens that would end it have no probability.

The same cut in target and draft keeps verification exact: p and q are then the distributions of a sampler that never
ends a row early, as transformers' MinNewTokensLengthLogitsProcessor makes them.
Shapes: B rows, T positions a row, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe.engine.slots import SlotState


def hold_open(logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor) -> None:
    """Sets logits of end-of-sequence and stop ids to -inf, in place, where a row may not end yet.

    logits [B * T, V]; slots [B]; positions [B, T]: of the token that each row of logits draws. Device operations only.
    """
    ids = state.stop_ids[slots][:, None, :].expand(-1, positions.shape[1], -1)
    held = (positions < state.min_length[slots][:, None])[:, :, None] & (ids >= 0) & (ids < logits.shape[1])
    # A minimum: entries that ban nothing share an index with others.
    bans = torch.where(held, -torch.inf, torch.inf).to(logits.dtype)
    logits.scatter_reduce_(1, ids.clamp(0, logits.shape[1] - 1).flatten(0, 1), bans.flatten(0, 1), reduce="amin")
