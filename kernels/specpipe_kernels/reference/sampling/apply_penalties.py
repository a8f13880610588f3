"""Penalties in plain torch, over the whole vocabulary. R requests, T rows of logits each, V entries."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import Penalties


def apply_penalties(
    logits: Tensor,
    tokens: Tensor,
    seen: Tensor,
    slots: Tensor,
    lengths: Tensor,
    penalties: Penalties,
    drafts: Tensor,
    *,
    first: int = 0,
    cu_rows: Tensor | None = None,
) -> None:
    """See `specpipe_kernels.apply_penalties`."""
    count, device = slots.shape[0], logits.device
    row = torch.arange(logits.shape[0], device=device)
    if cu_rows is None:
        owners = row // (logits.shape[0] // count)
        follows = row % (logits.shape[0] // count)
    else:
        owners = (torch.searchsorted(cu_rows.long(), row, right=True) - 1).clamp_(0, count - 1)
        follows = row - cu_rows[owners]
    inside, outputs = _occurrences(logits, tokens[slots], seen[slots], lengths)
    inside, outputs = inside[owners], outputs[owners]
    row_drafts = drafts[owners]
    counted = torch.arange(row_drafts.shape[1], device=device) < (first + follows)[:, None]
    outputs.scatter_add_(1, *_entries(row_drafts, (counted & (row_drafts >= 0)).int(), logits.shape[1]))
    x = logits.float()
    repetition, presence, frequency = (p[owners][:, None] for p in penalties)
    repeated = torch.where(x > 0, x / repetition, x * repetition)
    x = torch.where(inside | (outputs > 0), repeated, x)
    x -= frequency * outputs
    x -= torch.where(outputs > 0, presence, 0.0)
    logits.copy_(x)


def _occurrences(logits: Tensor, tokens: Tensor, seen: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns [R, V] bool: the token occurs in the request; [R, V] int32: its number of occurrences in the output."""
    occupied = (torch.arange(seen.shape[1], device=seen.device) < lengths[:, None]) & (seen > 0)
    inside, outputs = (
        torch.zeros(len(tokens), logits.shape[1], dtype=torch.int32, device=logits.device).scatter_add_(
            1, *_entries(tokens, torch.where(occupied, value, 0).int(), logits.shape[1])
        )
        for value in (torch.ones_like(seen), seen - 1)
    )
    return inside > 0, outputs


def _entries(tokens: Tensor, values: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Returns index and values for a scatter; tokens outside the vocabulary add 0."""
    return tokens.clamp(0, vocab - 1), values * (tokens < vocab)
