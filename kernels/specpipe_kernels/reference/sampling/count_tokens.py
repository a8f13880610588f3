"""Counts of a slot's distinct tokens, in plain torch. R requests, C positions per slot, N new tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import Penalties


def count_tokens(
    tokens: Tensor, seen: Tensor, slots: Tensor, lengths: Tensor, penalties: Penalties, new_tokens: Tensor
) -> None:
    """See `specpipe_kernels.count_tokens`."""
    penalised = (penalties.repetition != 1) | (penalties.presence != 0) | (penalties.frequency != 0)
    new = torch.where(penalised[:, None], new_tokens, -1)
    valid = new >= 0
    old = seen[slots]
    place = torch.arange(old.shape[1], device=seen.device)
    occupied = (place < lengths[:, None]) & (old > 0)
    same = (tokens[slots][:, :, None] == new[:, None, :]) & occupied[:, :, None]  # [R, C, N]
    duplicates = (new[:, :, None] == new[:, None, :]) & valid[:, :, None]
    first_occurrence = valid & ~same.any(1) & ~duplicates.tril(-1).any(-1)
    at = lengths[:, None] + torch.arange(new.shape[1], device=seen.device)
    counted = old + same.sum(-1).int()
    entries = torch.where(first_occurrence, 1 + duplicates.sum(-1), 0).int()
    at = at.clamp(max=old.shape[1] - 1)
    counted.scatter_(1, at, torch.where(valid, entries, counted.gather(1, at)))
    seen[slots] = counted
