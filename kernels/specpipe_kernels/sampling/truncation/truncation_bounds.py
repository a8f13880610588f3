"""Where top-k, top-p and min-p cut a row, without sorting it; the Triton form of `reference.kept_logits`.

Five launches, whatever the dtype and the filters: the extent of a row; twice its weight at or above eight thresholds,
which brackets the cut, the second time between two of the first; a list of what lies in the bracket; the cut. Many
programs share a row but in the last one; what they found is added up in a fixed order, so that the cut does not depend
on timing. Ties at the cut are kept from the lowest token id on.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.fast_math import at_least, fast_exp
from specpipe_kernels.sampling.device.logit_rows import (
    NOWHERE,
    PROGRAMS,
    LogitRows,
    count_positions,
    floats,
    int32s,
    inverse_temperature,
    load_tile,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.row_spans import next_tile, span_of
from specpipe_kernels.sampling.truncation.candidate_cutoff import (
    cut_of_candidates,
    load_candidates,
    weight_from,
    weight_of,
)
from specpipe_kernels.sampling.truncation.threshold_brackets import (
    BINS,
    bracket,
    first_bracket,
    first_thresholds,
    further_thresholds,
    load_extent,
)
from specpipe_kernels.types import Bounds, SamplingTensors

MOST_LISTED = 8192
"""Candidates of a row that one program holds; of more it searches the row itself, which is slow."""
LEAST_ROOM = 1024
"""For the candidates of one part of a row, which may have more than its share; of more, likewise."""
# Low bits of the fp32 form that are always zero.
_UNUSED_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


@triton.jit
def _find(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
    stride_group, stride_row, stride_draft, vocab, width, parts,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """→ item, part and request of a program, its row, temperature, k (0: off), p, and whether the row is truncated."""
    item = tl.program_id(0) // parts
    request = item // width
    position = item % width
    temp = tl.load(temperature + request)
    k = tl.load(top_k + request)
    p = tl.load(top_p + request)
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    used = count_positions(draft_tokens, stride_draft, num_drafts, request, width, K_PAD, BONUS)
    k = tl.where((k > 0) & (k < vocab), k, 0)
    return item, tl.program_id(0) % parts, request, row, temp, k, p, (position < used) & (temp > 0.0)


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps"])
def _extent_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
    stride_group, stride_row, stride_draft, vocab, width, parts, tops, bottoms, steps,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The largest and the smallest finite logit of a span."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, _, _, _, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
        stride_group, stride_row, stride_draft, vocab, width, parts, HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    if ~used:
        return
    begin, end = span_of(part, steps, vocab, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    smallest = tl.full([BLOCK], float("inf"), tl.float32)
    x = load_tile(row, begin + tl.arange(0, BLOCK), vocab)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        largest = tl.maximum(largest, x)
        smallest = tl.minimum(smallest, tl.where(x > float("-inf"), x, float("inf")))
        x = following
    partial = item.to(tl.int64) * parts + part
    tl.store(tops + partial, tl.max(largest))
    tl.store(bottoms + partial, tl.min(smallest))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps", "extents", "further"])
def _weigh_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
    stride_group, stride_row, stride_draft, vocab, width, parts, tops, bottoms,
    extents, before, weights, steps, further,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The weight of a span at or above each threshold; if further != 0, of those between what `before` brackets."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, temp, k, p, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
        stride_group, stride_row, stride_draft, vocab, width, parts, HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    if ~used | ((k == 0) & ~(p < 1.0)):
        return
    begin, end = span_of(part, steps, vocab, BLOCK)
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    inverse = inverse_temperature(temp)
    top, bottom = load_extent(tops, bottoms, item, extents, PARTS)
    thresholds = first_thresholds(top, bottom, k, p, temp, vocab)
    if further != 0:
        low, high, _above, _target = first_bracket(before, thresholds, item, parts, k, p, PARTS)
        thresholds = further_thresholds(low, high, top)
    sums = tl.zeros([BINS, BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        weight = tl.where(k > 0, 1.0, fast_exp((x - top) * inverse))
        sums += at_least(x[None, :], thresholds[:, None]) * weight[None, :]
        x = following
    tl.store(weights + (item.to(tl.int64) * parts + part) * BINS + tl.arange(0, BINS), tl.sum(sums, 1))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps", "extents", "room"])
def _list_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
    stride_group, stride_row, stride_draft, vocab, width, parts, tops, bottoms, extents, first, second,
    steps, listed, room, counts, brackets,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """List the tokens that a span has in the bracket, and count them.

    brackets [items, 5]: the largest logit, the bracket, the weight above the list, and the weight to reach, NaN where
    no cut is to be found.
    """
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, temp, k, p, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
        stride_group, stride_row, stride_draft, vocab, width, parts, HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    searched = (k > 0) | (p < 1.0)
    if ~used | ~(searched | (part == 0)):
        return
    begin, end = span_of(part, steps, vocab, BLOCK)
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    top, bottom = load_extent(tops, bottoms, item, extents, PARTS)
    thresholds = first_thresholds(top, bottom, k, p, temp, vocab)
    low, high, above, target = first_bracket(first, thresholds, item, parts, k, p, PARTS)
    thresholds = further_thresholds(low, high, top)
    low, high, above, target = bracket(
        second, thresholds, item, parts, k, p, low, high, above, target, False, PARTS
    )  # fmt: skip
    if part == 0:
        tl.store(brackets + 5 * item, top)
        tl.store(brackets + 5 * item + 1, low)
        tl.store(brackets + 5 * item + 2, high)
        tl.store(brackets + 5 * item + 3, tl.where(k > 0, 0.0, above))
        tl.store(brackets + 5 * item + 4, tl.where(searched, target, float("nan")))
    # Where top-k cuts, all that it keeps is listed, for top-p to choose from.
    high = tl.where(k > 0, float("inf"), high)
    if ~searched:
        return
    partial = item.to(tl.int64) * parts + part
    count = tl.zeros([], tl.int32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        taken = ((x >= low) & (x < high) & (x > float("-inf"))).to(tl.int32)
        here = tl.sum(taken)
        if here > 0:
            place = count + tl.cumsum(taken, 0) - 1
            tl.store(listed + partial * room + place, start + lane, mask=(taken == 1) & (place < room))
        count += here
        x = following
    tl.store(counts + partial, count)


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "room", "log_parts"])
def _cut_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
    stride_group, stride_row, stride_draft, vocab, width, parts,
    min_p, listed, room, counts, through, log_parts, brackets, out_logit, out_token,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    MOST: tl.constexpr, UNUSED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Find the cut of a row among the tokens that are listed."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, _, request, row, temp, k, p, used = _find(
        logits, row_map, draft_tokens, num_drafts, temperature, top_k, top_p,
        stride_group, stride_row, stride_draft, vocab, width, 1, HAS_MAP, BONUS, K_PAD,
    )  # fmt: skip
    if ~used:
        return
    floor = tl.load(min_p + request)
    top = tl.load(brackets + 5 * item)
    low = tl.load(brackets + 5 * item + 1)
    high = tl.load(brackets + 5 * item + 2)
    above = tl.load(brackets + 5 * item + 3)
    target = tl.load(brackets + 5 * item + 4)
    logit = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], NOWHERE, tl.int32)
    if target == target:
        inverse = inverse_temperature(temp)
        all_listed, xs, tokens = load_candidates(
            row, listed, counts, through, item, parts, room, log_parts, PARTS, MOST
        )
        if k > 0:
            logit, token = cut_of_candidates(
                xs, tokens, all_listed, above, target, low, high, row, vocab, top, inverse, logit, token,
                False, UNUSED, BLOCK,
            )  # fmt: skip
            high = top  # top-p may cut off much more
            weights = weight_of(xs, tokens, vocab, top, inverse, logit, token, True)
            target = p * weight_from(
                float("-inf"), xs, weights, all_listed, row, vocab, top, inverse, logit, token, True, BLOCK
            )
        if p < 1.0:
            logit, token = cut_of_candidates(
                xs, tokens, all_listed, above, target, low, high, row, vocab, top, inverse, logit, token,
                True, UNUSED, BLOCK,
            )  # fmt: skip
    least = tl.where(floor > 0.0, top + temp * tl.log(tl.where(floor > 0.0, floor, 1.0)), float("-inf"))
    tl.store(out_token + item, tl.where(least > logit, NOWHERE, token))  # min-p comes last
    tl.store(out_logit + item, tl.maximum(least, logit))


def truncation_bounds(rows: LogitRows, sampling: SamplingTensors) -> Bounds:
    """[items] each; undefined where a row is greedy or not in use."""
    like, items = rows.logits, rows.items
    wide, cut = row_tiling(rows.vocab, items), row_tiling(rows.vocab, items, warps=1, programs=8 * PROGRAMS)
    located = (
        like, rows.row_map, rows.draft_tokens, rows.num_drafts, sampling.temperature, sampling.top_k, sampling.top_p,
        rows.stride_group, rows.stride_row, rows.stride_draft, rows.vocab, rows.width,
    )  # fmt: skip
    common: dict[str, Any] = {
        "HAS_MAP": rows.row_map is not None, "BONUS": rows.bonus, "K_PAD": rows.k_pad, **launch_options(like),
    }  # fmt: skip
    extents = floats(like, items, wide.parts), floats(like, items, wide.parts), wide.parts
    _extent_kernel[(items * wide.parts,)](
        *located, wide.parts, *extents[:2], wide.steps, BLOCK=wide.tile, num_warps=wide.warps, **common
    )
    common["PARTS"] = max(wide.parts_pad, cut.parts_pad)
    weights = [floats(like, items, cut.parts, BINS.value) for _ in range(2)]
    for step in range(2):
        _weigh_kernel[(items * cut.parts,)](
            *located, cut.parts, *extents, weights[0], weights[step], cut.steps, step,
            BLOCK=cut.tile, num_warps=cut.warps, **common,
        )  # fmt: skip
    room = min(cut.steps * cut.tile, max(LEAST_ROOM, 2 * MOST_LISTED // cut.parts))
    counts = int32s(like, items, cut.parts)
    listed, brackets = int32s(like, items, cut.parts, room), floats(like, items, 5)
    _list_kernel[(items * cut.parts,)](
        *located, cut.parts, *extents, *weights, cut.steps, listed, room, counts, brackets,
        BLOCK=cut.tile, num_warps=cut.warps, **common,
    )  # fmt: skip
    bounds = Bounds(floats(like, items), int32s(like, items))
    _cut_kernel[(items,)](
        *located, cut.parts, sampling.min_p, listed, room, counts, torch.empty_like(counts), cut.parts.bit_length(),
        brackets, *bounds,
        BLOCK=wide.tile, MOST=MOST_LISTED, UNUSED=_UNUSED_BITS[like.dtype], num_warps=max(1, MOST_LISTED // 512),
        **common,
    )  # fmt: skip
    return bounds
