"""Where top-k, top-p and min-p cut a row, without sorting it; the Triton form of `reference.kept_logits`.

Floats are mapped to unsigned keys of the same order. The last kept key is found two bits at a time: each pass over the
row weighs (counts, or sums the mass of) the keys under every value of the next two bits. bf16 and fp16 logits have
fewer bits to find. Ties at the cut are kept from the lowest token id on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specpipe_kernels.triton_ops.rows import (
    NOWHERE,
    Rows,
    count_positions,
    floats,
    int32s,
    inverse_temperature,
    load_tile,
    row_pointer,
    tile_of,
)
from specpipe_kernels.types import Bounds, SamplingTensors

# Low bits of the fp32 form that are always zero.
_UNUSED_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
_SIGN = tl.constexpr(0x80000000)
_ONES = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _keys(x, UNUSED: tl.constexpr):
    """Unsigned integers in the order of x; -0.0 equals 0.0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN, bits ^ _ONES, bits | _SIGN) >> UNUSED


@triton.jit
def _logit_of(key, UNUSED: tl.constexpr):
    """The float of a key; -inf for keys below all floats."""
    full = (key << UNUSED).to(tl.uint32)
    low = tl.full([], (1 << UNUSED) - 1, tl.uint32)
    bits = tl.where(full >= _SIGN, full ^ _SIGN, (full | low) ^ _ONES).to(tl.uint32)
    x = bits.to(tl.float32, bitcast=True)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _weight(x, offsets, vocab, top, inverse, kept_logit, kept_token, MASS: tl.constexpr):
    """1 a token for top-k; for top-p the mass of what top-k kept, over the largest."""
    if MASS:
        kept = (x > kept_logit) | ((x == kept_logit) & (offsets <= kept_token))
        return tl.where(kept, tl.exp((x - top) * inverse), 0.0)
    return tl.where(offsets < vocab, 1.0, 0.0)


@triton.jit
def _cut(
    row, vocab, target, top, inverse, kept_logit, kept_token,
    MASS: tl.constexpr, UNUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Last (logit, token) of the shortest ranking prefix whose weight reaches `target`."""
    prefix = tl.zeros([], tl.uint32)
    mask = tl.zeros([], tl.uint32)
    above = tl.zeros([], tl.float32)
    steps: tl.constexpr = (32 - UNUSED + 1) // 2
    for step in range(steps):
        shift = (tl.zeros([], tl.int32) + 2 * (steps - 1 - step)).to(tl.uint32)
        w3 = tl.zeros([BLOCK], tl.float32)
        w2 = tl.zeros([BLOCK], tl.float32)
        w1 = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            x = load_tile(row, offsets, vocab)
            key = _keys(x, UNUSED)
            w = _weight(x, offsets, vocab, top, inverse, kept_logit, kept_token, MASS)
            w = tl.where((key & mask) == prefix, w, 0.0)
            digit = (key >> shift) & 3
            w3 += tl.where(digit == 3, w, 0.0)
            w2 += tl.where(digit == 2, w, 0.0)
            w1 += tl.where(digit == 1, w, 0.0)
        at3 = above + tl.sum(w3)
        at2 = at3 + tl.sum(w2)
        at1 = at2 + tl.sum(w1)
        digit = tl.where(at3 >= target, 3, tl.where(at2 >= target, 2, tl.where(at1 >= target, 1, 0)))
        above = tl.where(at3 >= target, above, tl.where(at2 >= target, at3, tl.where(at1 >= target, at2, at1)))
        prefix = prefix | (digit.to(tl.uint32) << shift)
        mask = mask | (tl.full([], 3, tl.uint32) << shift)
    logit = _logit_of(prefix, UNUSED)
    each = 1.0
    if MASS:
        each = tl.maximum(tl.exp((logit - top) * inverse), 1e-37)
    ties = tl.minimum(tl.maximum(tl.ceil((target - above) / each), 1.0), 1e9).to(tl.int32)
    return logit, _nth(row, vocab, logit, kept_logit, kept_token, ties, MASS, BLOCK)


@triton.jit
def _nth(row, vocab, logit, kept_logit, kept_token, n, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Token id of the n-th entry that equals `logit`; NOWHERE if there are fewer."""
    token = tl.full([], NOWHERE, tl.int32)
    before = tl.zeros([], tl.int32)
    for start in range(0, vocab, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = load_tile(row, offsets, vocab)
        tied = ((x == logit) & (offsets < vocab)).to(tl.int32)
        if MASS:
            tied = tl.where((x > kept_logit) | (offsets <= kept_token), tied, 0)
        rank = before + tl.cumsum(tied, 0)
        token = tl.minimum(token, tl.min(tl.where((tied == 1) & (rank == n), offsets, NOWHERE)))
        before += tl.sum(tied)
    return token


@triton.jit(do_not_specialize=["width", "stride_draft"])
def _truncation_bounds_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p, min_p, out_logit, out_token,
    stride_group, stride_row, stride_draft, vocab, width,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, UNUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    request = item // width
    position = item % width
    used = count_positions(draft_tokens, stride_draft, num_drafts, request, width, K_PAD, BONUS)
    temp = tl.load(temperature + request)
    if (position >= used) | (temp == 0.0):
        return
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    inverse = inverse_temperature(temp)
    k = tl.load(top_k + request)
    p = tl.load(top_p + request)
    floor = tl.load(min_p + request)
    tops = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        tops = tl.maximum(tops, load_tile(row, start + tl.arange(0, BLOCK), vocab))
    top = tl.max(tops)
    logit = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], NOWHERE, tl.int32)
    if (k > 0) & (k < vocab):
        logit, token = _cut(row, vocab, k.to(tl.float32), top, inverse, logit, token, False, UNUSED, BLOCK)
    if p < 1.0:
        masses = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            x = load_tile(row, offsets, vocab)
            masses += _weight(x, offsets, vocab, top, inverse, logit, token, True)
        target = p * tl.sum(masses)
        logit, token = _cut(row, vocab, target, top, inverse, logit, token, True, UNUSED, BLOCK)
    if floor > 0.0:
        least = top + temp * tl.log(floor)
        token = tl.where(least > logit, NOWHERE, token)
        logit = tl.maximum(least, logit)
    tl.store(out_logit + item, logit)
    tl.store(out_token + item, token)


def truncation_bounds(rows: Rows, sampling: SamplingTensors) -> Bounds:
    """[items] each; undefined where a row is greedy or not in use."""
    bounds = Bounds(floats(rows.logits, rows.items), int32s(rows.logits, rows.items))
    _truncation_bounds_kernel[(rows.items,)](
        rows.logits, rows.row_map, rows.draft_tokens, rows.num_drafts,
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, bounds.logit, bounds.token,
        rows.stride_group, rows.stride_row, rows.stride_draft, rows.vocab, rows.width,
        HAS_MAP=rows.row_map is not None, BONUS=rows.bonus, K_PAD=rows.k_pad,
        UNUSED=_UNUSED_BITS[rows.logits.dtype], BLOCK=tile_of(rows.vocab), num_warps=8,
    )  # fmt: skip
    return bounds
