"""Writes a round's emitted tokens to its slots, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import RejectionOutput, SlotTensors


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
    """See `specpipe_kernels.commit_rows`."""
    k = verdict.tokens.shape[1] - 1
    active = state.active[slots]
    columns = torch.arange(k + 1, device=slots.device)
    emitted = torch.where(active, verdict.num_emitted, 0).to(torch.int64)
    is_stop = (verdict.tokens[:, :, None] == state.stop_ids[slots][:, None, :]).any(dim=2)
    is_stop &= columns < emitted[:, None]
    first_stop = torch.where(is_stop, columns, k + 1).amin(dim=1)
    emitted = torch.minimum(emitted, first_stop + 1)
    tokens = torch.where(columns < emitted[:, None], verdict.tokens, -1)

    # Columns past the emission land beyond the new length, where nothing is read.
    state.tokens[slots[:, None], lengths[:, None] + columns] = tokens.clamp(min=0)
    state.length[slots] = lengths + emitted
    ended = (first_stop <= k) | (lengths + emitted >= state.limit[slots]) | (verdict.status > 0)
    state.active[slots] = active & ~ended
    draft_valid = state.draft_valid[slots]
    if draft_steps:
        # The draft model never processed its last draft, and its KV behind the first rejected draft is stale.
        valid = lengths + verdict.num_accepted.clamp(max=draft_steps - 1)
        advances = active & (proposed > 0) & (draft_valid >= lengths - 2)
        draft_valid = torch.where(advances, valid, draft_valid)
        state.draft_valid[slots] = draft_valid
    sources = torch.where(proposed > 0, sources, 0)
    columns_after = (emitted, verdict.num_accepted, proposed, verdict.status, sources, draft_valid)
    return torch.cat([tokens, torch.stack([column.to(torch.int64) for column in columns_after], dim=1)], dim=1)
