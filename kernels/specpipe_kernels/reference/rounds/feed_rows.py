"""Lays out the tokens and positions of a forward pass, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import ForwardTokens, SlotTensors


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> ForwardTokens:
    """See `specpipe_kernels.feed_rows`."""
    starts = lengths + shift
    positions = starts[:, None] + torch.arange(width, device=slots.device)
    committed = torch.minimum(positions, lengths[:, None] - 1).clamp(min=0)
    tokens = state.tokens[slots[:, None], committed]
    if drafts is not None:
        drafted = drafts.gather(1, (positions - lengths[:, None]).clamp(0, drafts.shape[1] - 1))
        tokens = torch.where((positions >= lengths[:, None]) & (drafted >= 0), drafted, tokens)
    return ForwardTokens(tokens.flatten(), positions.clamp(0, last).flatten(), starts, starts + width)
