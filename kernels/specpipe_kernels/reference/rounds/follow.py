"""Finds the place of rows in the texts that they follow, in plain torch.

Shapes: B batch rows, K drafts at most, T tokens of a text.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import Followed, ReferenceTensors


def follow(
    tokens: Tensor,
    texts: ReferenceTensors,
    slots: Tensor,
    lengths: Tensor,
    max_drafts: Tensor,
    *,
    k: int,
    vocab_size: int,
    min_match: int,
    max_match: int,
) -> Followed:
    """See `specpipe_kernels.follow`."""
    text, sizes = texts.tokens[slots], texts.length[slots]
    expected = lengths if texts.anchor is None else lengths + texts.anchor[slots]
    matched = _match_lengths(tokens, slots, lengths, text, max_match)
    places = torch.arange(text.shape[1], device=slots.device)
    away = (places - expected[:, None]).abs()
    matched = torch.where((places < sizes[:, None]) & ((away == 0) | (matched >= min_match)), matched, 0)
    longest = matched.amax(dim=1, keepdim=True)
    found = (longest[:, 0] > 0) & (max_drafts > 0)
    # The first of the nearest places: argmin of equal values is not defined.
    nearest = torch.where(matched == longest, 2 * away + (places > expected[:, None]), 2**40)
    place = nearest.argmin(dim=1)
    if texts.anchor is not None:
        texts.anchor[slots] = torch.where(found, place - lengths, texts.anchor[slots])

    index = torch.arange(k, device=slots.device)
    at = place[:, None] + index
    drafts = text.gather(1, at.clamp(max=text.shape[1] - 1)).to(torch.int64)
    usable = (at < sizes[:, None]) & (index < max_drafts[:, None]) & (drafts >= 0) & (drafts < vocab_size)
    usable = (usable & found[:, None]).long().cumprod(dim=1).bool()
    return Followed(
        torch.where(usable, drafts, -1),
        usable.sum(dim=1).to(torch.int32),
        torch.where(found, longest[:, 0], 0).to(torch.int32),
    )


def _match_lengths(tokens: Tensor, slots: Tensor, lengths: Tensor, text: Tensor, max_match: int) -> Tensor:
    """Returns [B, T] int64: tokens before each place of text [B, T] that equal the row's last ones."""
    matched, equal = torch.zeros_like(text, dtype=torch.int64), torch.ones_like(text, dtype=torch.bool)
    for back in range(1, min(max_match, text.shape[1]) + 1):
        last = tokens[slots, (lengths - back).clamp(min=0)]
        before = torch.zeros_like(equal)
        before[:, back:] = (text[:, : text.shape[1] - back] == last[:, None]) & (lengths >= back)[:, None]
        equal = equal & before
        matched += equal
    return matched
