"""Gathers the state of a round's slots into batch rows, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import OpenedRows, SlotTensors


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """See `specpipe_kernels.open_rows`."""
    lengths = state.length[slots]
    # One position is reserved for the round's own token, so speculation never changes which rows fit.
    max_drafts = (state.limit[slots] - lengths - 1).clamp(0, k)
    max_drafts = torch.where(state.active[slots] & state.speculates[slots], max_drafts, 0).to(torch.int32)
    return OpenedRows(
        lengths=lengths,
        max_drafts=max_drafts,
        max_model_drafts=torch.where(state.draft_valid[slots] >= lengths - 2, max_drafts, 0),
        block_tables=state.block_table[:, :width].index_select(0, slots),
        temperature=state.temperature[slots],
        top_k=state.top_k[slots],
        top_p=state.top_p[slots],
        min_p=state.min_p[slots],
        seed=state.seed[slots],
    )
