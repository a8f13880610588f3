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
    own = drafts[owners]
    counted = torch.arange(own.shape[1], device=device) < (first + follows)[:, None]
    outputs.scatter_add_(1, *_entries(own, (counted & (own >= 0)).int(), logits.shape[1]))
    x = logits.float()
    repetition, presence, frequency = (p[owners][:, None] for p in penalties)
    repeated = torch.where(x > 0, x / repetition, x * repetition)
    x = torch.where(inside | (outputs > 0), repeated, x)
    x -= frequency * outputs
    x -= torch.where(outputs > 0, presence, 0.0)
    logits.copy_(x)


def _occurrences(logits: Tensor, tokens: Tensor, seen: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """[R, V]: whether a token is among a request's, and how often it is in its output."""
    there = (torch.arange(seen.shape[1], device=seen.device) < lengths[:, None]) & (seen > 0)
    inside, outputs = (
        torch.zeros(len(tokens), logits.shape[1], dtype=torch.int32, device=logits.device).scatter_add_(
            1, *_entries(tokens, torch.where(there, value, 0).int(), logits.shape[1])
        )
        for value in (torch.ones_like(seen), seen - 1)
    )
    return inside > 0, outputs


def _entries(tokens: Tensor, values: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Index and values for a scatter; what lies outside the vocabulary adds nothing."""
    return tokens.clamp(0, vocab - 1), values * (tokens < vocab)
