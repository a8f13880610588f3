"""Where top-k, top-p and min-p cut a row, without sorting it; the Triton form of `reference.kept_logits`.

Floats are mapped to unsigned keys of the same order. The last kept key is found four bits at a time: a launch weighs
(counts, or sums the mass of) the keys under every value of the next four bits, each program in its span of a row; the
next launch adds up the parts, always in one order, and looks below the digit at which the target is reached. bf16 and
fp16 logits have fewer bits to find. Ties at the cut are kept from the lowest token id on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.rows import (
    NOWHERE,
    Rows,
    count_positions,
    cut_of,
    floats,
    int32s,
    inverse_temperature,
    load_tile,
    row_pointer,
)
from specpipe_kernels.triton_ops.tiles import span_of
from specpipe_kernels.types import Bounds, SamplingTensors

_DIGITS = tl.constexpr(16)
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
def _target(top_k, top_p, request, vocab, MASS: tl.constexpr):
    """→ the weight that the kept tokens must reach (top-p: as a share of the whole), and whether this filter cuts."""
    if MASS:
        p = tl.load(top_p + request)
        return p, p < 1.0
    k = tl.load(top_k + request)
    return k.to(tl.float32), (k > 0) & (k < vocab)


@triton.jit
def _largest(tops, item, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(tops + item.to(tl.int64) * parts + part, mask=part < parts, other=float("-inf")))


@triton.jit
def _next_digit(
    weights, prefixes, aboves, item, parts, shift, share, done,
    MASS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """→ the last kept key down to the digit at `shift`, the weight above that, and the weight to reach.

    done: digits that were found before. Where there are none, the weights are those of the whole row.
    """
    first = done == 0
    part = tl.arange(0, PARTS)
    digit = tl.arange(0, _DIGITS)
    at = weights + (item.to(tl.int64) * parts + part[:, None]) * _DIGITS + digit[None, :]
    weight = tl.sum(tl.load(at, mask=(part < parts)[:, None], other=0.0), 0)
    prefix = tl.load(prefixes + item, mask=~first, other=0).to(tl.uint32, bitcast=True)
    above = tl.load(aboves + 2 * item.to(tl.int64), mask=~first, other=0.0)
    target = tl.load(aboves + 2 * item.to(tl.int64) + 1, mask=~first, other=0.0)
    if MASS:
        share *= tl.sum(weight)
    target = tl.where(first, share, target)
    reached = above + tl.cumsum(weight, 0, reverse=True)
    found = tl.max(tl.where(reached >= target, digit, 0))
    above = tl.where(found == _DIGITS - 1, above, tl.sum(tl.where(digit == found + 1, reached, 0.0)))
    return prefix | (found.to(tl.uint32) << shift), above, target


@triton.jit
def _kept_before(kept_logit, kept_token, item, MASS: tl.constexpr):
    """What top-p finds kept by top-k; all for top-k."""
    if MASS:
        return tl.load(kept_logit + item), tl.load(kept_token + item)
    return tl.full([], float("-inf"), tl.float32), tl.full([], NOWHERE, tl.int32)


@triton.jit
def _tied(row, offsets, vocab, logit, before_logit, before_token, MASS: tl.constexpr):
    """1 where a token that the filter before kept has this logit."""
    x = load_tile(row, offsets, vocab)
    tied = ((x == logit) & (offsets < vocab)).to(tl.int32)
    if MASS:
        tied = tl.where((x > before_logit) | (offsets <= before_token), tied, 0)
    return tied


@triton.jit
def _find(
    logits, row_map, draft_tokens, num_drafts, temperature, stride_group, stride_row, stride_draft, width, parts,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """→ item, part and request of a program, its row, the temperature, and whether the row is truncated."""
    item = tl.program_id(0) // parts
    request = item // width
    position = item % width
    used = count_positions(draft_tokens, stride_draft, num_drafts, request, width, K_PAD, BONUS)
    temp = tl.load(temperature + request)
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    return item, tl.program_id(0) % parts, request, row, temp, (position < used) & (temp > 0.0)


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps"])
def _largest_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature,
    stride_group, stride_row, stride_draft, vocab, width, parts, steps, tops,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit of a span."""
    item, part, _, row, _, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, stride_group, stride_row, stride_draft, width, parts,
        HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    if ~used:
        return
    begin, end = span_of(part, steps, vocab, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(begin, end, BLOCK):
        largest = tl.maximum(largest, load_tile(row, start + tl.arange(0, BLOCK), vocab))
    tl.store(tops + item.to(tl.int64) * parts + part, tl.max(largest))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps", "step", "shift"])
def _weigh_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature,
    stride_group, stride_row, stride_draft, vocab, width, parts, steps, tops,
    top_k, top_p, kept_logit, kept_token,
    weights, prefixes, aboves, next_weights, next_prefixes, next_aboves, step, shift,
    MASS: tl.constexpr, HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr,
    UNUSED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The weight of a span under every digit at `shift` of the keys that begin as the last kept one does.

    weights, prefixes, aboves: what the launch before left, for the digit above, if step > 0.
    """
    item, part, request, row, temp, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, stride_group, stride_row, stride_draft, width, parts,
        HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    share, cuts = _target(top_k, top_p, request, vocab, MASS)
    if ~used | ~cuts:
        return
    inverse = inverse_temperature(temp)
    top = _largest(tops, item, parts, PARTS)
    before_logit, before_token = _kept_before(kept_logit, kept_token, item, MASS)
    place = (tl.zeros([], tl.int32) + shift).to(tl.uint32)
    prefix = tl.zeros([], tl.uint32)
    if step > 0:
        prefix, above, target = _next_digit(
            weights, prefixes, aboves, item, parts, place + 4, share, tl.zeros([], tl.int32) + step - 1, MASS, PARTS
        )
        if part == 0:
            tl.store(next_prefixes + item, prefix.to(tl.int32, bitcast=True))
            tl.store(next_aboves + 2 * item.to(tl.int64), above)
            tl.store(next_aboves + 2 * item.to(tl.int64) + 1, target)
    digit = tl.arange(0, _DIGITS)
    sums = tl.zeros([_DIGITS, BLOCK], tl.float32)
    begin, end = span_of(part, steps, vocab, BLOCK)
    for start in range(begin, end, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = load_tile(row, offsets, vocab)
        key = _keys(x, UNUSED)
        weight = _weight(x, offsets, vocab, top, inverse, before_logit, before_token, MASS)
        weight = tl.where(((key >> place) >> 4) == ((prefix >> place) >> 4), weight, 0.0)
        here = ((key >> place) & 15).to(tl.int32)
        sums += tl.where(here[None, :] == digit[:, None], weight[None, :], 0.0)
    tl.store(next_weights + (item.to(tl.int64) * parts + part) * _DIGITS + digit, tl.sum(sums, 1))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps"])
def _tie_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature,
    stride_group, stride_row, stride_draft, vocab, width, parts, steps, tops,
    top_k, top_p, min_p, kept_logit, kept_token, weights, prefixes, aboves, ties, out_logit, out_token,
    COUNT: tl.constexpr, MASS: tl.constexpr, HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr,
    UNUSED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """COUNT: the tokens of a span that have the last kept logit. Else what the filter keeps, from those counts."""
    item, part, request, row, temp, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, stride_group, stride_row, stride_draft, width, parts,
        HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    share, cuts = _target(top_k, top_p, request, vocab, MASS)
    if ~used:
        return
    top = _largest(tops, item, parts, PARTS)
    before_logit, before_token = _kept_before(kept_logit, kept_token, item, MASS)
    begin, end = span_of(part, steps, vocab, BLOCK)
    partial = item.to(tl.int64) * parts + part
    lane = tl.arange(0, BLOCK)
    logit = before_logit
    token = before_token
    missing = tl.zeros([], tl.int32)  # ties to keep
    if cuts:
        key, above, target = _next_digit(
            weights,
            prefixes,
            aboves,
            item,
            parts,
            tl.zeros([], tl.uint32),
            share,
            tl.full([], 1, tl.int32),
            MASS,
            PARTS,
        )
        logit = _logit_of(key, UNUSED)
        each = 1.0
        if MASS:
            each = tl.maximum(tl.exp((logit - top) * inverse_temperature(temp)), 1e-37)
        missing = tl.minimum(tl.maximum(tl.ceil((target - above) / each), 1.0), 1e9).to(tl.int32)
    if COUNT:
        if cuts:
            count = tl.zeros([BLOCK], tl.int32)
            for start in range(begin, end, BLOCK):
                count += _tied(row, start + lane, vocab, logit, before_logit, before_token, MASS)
            tl.store(ties + partial, tl.sum(count))
    else:
        mine = part == 0  # whether this program tells what is kept
        if cuts:
            other = tl.arange(0, PARTS)
            counts = tl.load(ties + item.to(tl.int64) * parts + other, mask=other < parts, other=0)
            before = tl.sum(tl.where(other < part, counts, 0))
            through = tl.sum(tl.where(other <= part, counts, 0))
            token = tl.full([], NOWHERE, tl.int32)  # where there are fewer than that
            mine = ((before < missing) & (missing <= through)) | (mine & (tl.sum(counts) < missing))
            if (before < missing) & (missing <= through):
                for start in range(begin, end, BLOCK):
                    tied = _tied(row, start + lane, vocab, logit, before_logit, before_token, MASS)
                    nth = (tied == 1) & (before + tl.cumsum(tied, 0) == missing)
                    token = tl.minimum(token, tl.min(tl.where(nth, start + lane, NOWHERE)))
                    before += tl.sum(tied)
        if MASS:  # min-p comes last
            floor = tl.load(min_p + request)
            least = tl.where(floor > 0.0, top + temp * tl.log(tl.where(floor > 0.0, floor, 1.0)), float("-inf"))
            token = tl.where(least > logit, NOWHERE, token)
            logit = tl.maximum(least, logit)
        if mine:
            tl.store(out_logit + item, logit)
            tl.store(out_token + item, token)


class _Found(NamedTuple):
    """What a launch leaves for the next one, of every item."""

    weights: Tensor
    """[items, parts, digits]."""
    prefixes: Tensor
    """[items] int32."""
    aboves: Tensor
    """[items, 2]: the weight above the prefix, the weight to reach."""


def truncation_bounds(rows: Rows, sampling: SamplingTensors) -> Bounds:
    """[items] each; undefined where a row is greedy or not in use."""
    like, items, unused = rows.logits, rows.items, _UNUSED_BITS[rows.logits.dtype]
    cut = cut_of(rows.vocab, items, lanes=4)
    tops, ties = floats(like, items, cut.parts), int32s(like, items, cut.parts)
    by_k, bounds = (Bounds(floats(like, items), int32s(like, items)) for _ in range(2))
    # Two in turns: a launch reads what the one before left, while others of its programs write already.
    found = [
        _Found(floats(like, items, cut.parts, _DIGITS.value), int32s(like, items), floats(like, items, 2))
        for _ in range(2)
    ]
    grid = (items * cut.parts,)
    located = (
        like, rows.row_map, rows.draft_tokens, rows.num_drafts, sampling.temperature,
        rows.stride_group, rows.stride_row, rows.stride_draft, rows.vocab, rows.width, cut.parts, cut.steps, tops,
    )  # fmt: skip
    common: dict[str, Any] = {
        "HAS_MAP": rows.row_map is not None, "BONUS": rows.bonus, "K_PAD": rows.k_pad, "BLOCK": cut.tile,
        "num_warps": cut.warps,
    }  # fmt: skip
    _largest_kernel[grid](*located, **common)
    common |= {"UNUSED": unused, "PARTS": cut.parts_pad}
    steps = (32 - unused + 3) // 4
    for mass, out in ((False, by_k), (True, bounds)):
        for step in range(steps):
            _weigh_kernel[grid](
                *located, sampling.top_k, sampling.top_p, *by_k, *found[(step + 1) % 2], *found[step % 2],
                step, 4 * (steps - 1 - step), MASS=mass, **common,
            )  # fmt: skip
        for count in (True, False):
            _tie_kernel[grid](
                *located, sampling.top_k, sampling.top_p, sampling.min_p, *by_k, *found[(steps + 1) % 2], ties, *out,
                COUNT=count, MASS=mass, **common,
            )  # fmt: skip
    return bounds
