"""What stands between the forwards of a round, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import Fed, OpenedRows, RejectionOutput, SlotTensors


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """See `specpipe_kernels.open_rows`."""
    lengths = state.length[slots]
    # Speculation never changes which rows fit: the round's own token is always kept room for.
    room = (state.limit[slots] - lengths - 1).clamp(0, k)
    room = torch.where(state.active[slots], room, 0).to(torch.int32)
    return OpenedRows(
        lengths=lengths,
        room=room,
        draft_room=torch.where(state.draft_valid[slots] >= lengths - 2, room, 0),
        block_tables=state.block_table[:, :width].index_select(0, slots),
        temperature=state.temperature[slots],
        top_k=state.top_k[slots],
        top_p=state.top_p[slots],
        min_p=state.min_p[slots],
        seed=state.seed[slots],
    )


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> Fed:
    """See `specpipe_kernels.feed_rows`."""
    starts = lengths + shift
    positions = starts[:, None] + torch.arange(width, device=slots.device)
    committed = torch.minimum(positions, lengths[:, None] - 1).clamp(min=0)
    tokens = state.tokens[slots[:, None], committed]
    if drafts is not None:
        drafted = drafts.gather(1, (positions - lengths[:, None]).clamp(0, drafts.shape[1] - 1))
        tokens = torch.where((positions >= lengths[:, None]) & (drafted >= 0), drafted, tokens)
    return Fed(tokens.flatten(), positions.clamp(0, last).flatten(), starts, starts + width)


def commit_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, verdict: RejectionOutput, proposed: Tensor, *, drafted: bool
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

    # Columns past the emission land beyond the new length, where no one reads.
    state.tokens[slots[:, None], lengths[:, None] + columns] = tokens.clamp(min=0)
    state.length[slots] = lengths + emitted
    ended = (first_stop <= k) | (lengths + emitted >= state.limit[slots]) | (verdict.status > 0)
    state.active[slots] = active & ~ended
    if drafted:
        old = state.draft_valid[slots]
        # d_k was never fed, and what follows the first rejected draft is stale.
        valid = lengths + verdict.num_accepted.clamp(max=k - 1)
        state.draft_valid[slots] = torch.where(active & (old >= lengths - 2), valid, old)
    facts = (emitted, verdict.num_accepted, proposed, verdict.status)
    return torch.cat([tokens, torch.stack([fact.to(torch.int64) for fact in facts], dim=1)], dim=1)
