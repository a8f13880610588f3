"""Finds the place of rows in the texts that they follow, one program a row.

A row that still follows its text is at the expected place, and the text is not searched.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import Followed, ReferenceTensors

BLOCK = 1024
"""Places of a text that a program compares at once."""
_MATCH_UNIT = tl.constexpr(1 << 40)
"""Weight of a matching token over twice any distance of two places."""


@triton.jit
def _match_length(text, tokens, place, length, MATCH: tl.constexpr):
    """Returns the tokens before `place` that equal the row's last ones. text, tokens: first ones of text and row."""
    matched = tl.zeros_like(place)
    equal = place > 0
    for back in tl.static_range(1, MATCH + 1):
        inside = equal & (place >= back) & (length >= back)
        theirs = tl.load(text + place - back, mask=inside, other=-1).to(tl.int64)
        own = tl.load(tokens + length - back, mask=length >= back, other=0)
        equal = inside & (theirs == own)
        matched += equal.to(tl.int64)
    return matched


@triton.jit(do_not_specialize=["k", "vocab_size", "min_match", "stride_tokens", "stride_text"])
def _follow_kernel(
    tokens, texts, slots, lengths, max_drafts, out, k, vocab_size, min_match, stride_tokens, stride_text,
    MATCH: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    length = tl.load(lengths + row)
    fits = tl.load(max_drafts + row)
    anchor = length * 0
    if texts.anchor is not None:
        anchor = tl.load(texts.anchor + slot)
    size = tl.load(texts.length + slot)
    size = tl.where(fits > 0, size, 0)
    text = texts.tokens + slot * stride_text
    own = tokens + slot * stride_tokens
    expected = length + anchor
    at = expected + tl.zeros([1], tl.int64)
    valid = (at > 0) & (at < size)
    matched_there = _match_length(text, own, tl.where(valid, at, 0), length, MATCH)
    best = tl.max(tl.where(valid & (matched_there > 0), (matched_there + 1) * _MATCH_UNIT, 0))
    searched = tl.where(best == (MATCH + 1) * _MATCH_UNIT, 0, size)
    for start in range(0, searched, BLOCK):
        places = start + tl.arange(0, BLOCK).to(tl.int64)
        matched = _match_length(text, own, tl.where(places < size, places, 0), length, MATCH)
        distance = tl.abs(places - expected)
        key = (matched + 1) * _MATCH_UNIT - 2 * distance - (places > expected).to(tl.int64)
        usable = (places < size) & (matched > 0) & ((matched >= min_match) | (distance == 0))
        best = tl.maximum(best, tl.max(tl.where(usable, key, 0)))
    found = best > 0
    longest = (best + _MATCH_UNIT - 1) // _MATCH_UNIT - 1
    away = (longest + 1) * _MATCH_UNIT - best
    place = tl.where(away % 2 == 1, expected + away // 2, expected - away // 2)
    if texts.anchor is not None:
        tl.debug_barrier()  # all threads have read the anchor before any thread writes it
        tl.store(texts.anchor + slot, tl.where(found, place - length, anchor))

    i = tl.arange(0, K_PAD)
    inside = found & (i < k) & (i < fits) & (place + i < size)
    draft = tl.load(text + place + i, mask=inside, other=-1).to(tl.int64)
    inside = inside & (draft >= 0) & (draft < vocab_size)
    count = tl.min(tl.where(inside, K_PAD, i))
    tl.store(out.tokens + row * k + i, tl.where(i < count, draft, -1), mask=i < k)
    tl.store(out.num_tokens + row, count)
    tl.store(out.matched + row, tl.where(found, longest, 0).to(tl.int32))
    let_next_start(PDL)


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
    count = slots.shape[0]
    out = Followed(
        torch.empty(count, k, dtype=torch.int64, device=slots.device),
        torch.empty(count, dtype=torch.int32, device=slots.device),
        torch.empty(count, dtype=torch.int32, device=slots.device),
    )
    _follow_kernel[(count,)](
        tokens, texts, slots, lengths, max_drafts, out, k, vocab_size, min_match,
        tokens.stride(0), texts.tokens.stride(0),
        MATCH=max_match, K_PAD=power_of_2(k), BLOCK=BLOCK, num_warps=4, **launch_options(slots),
    )  # fmt: skip
    return out
