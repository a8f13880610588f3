"""Truncation bounds of top-k, top-p and min-p, without sorting rows; see `reference.sampling.kept_logits`.

Five launches for any dtype and filters: the extent of a row; twice its weight at or above eight thresholds, which
brackets the cutoff (the second time between two of the first thresholds); a list of the candidates in the bracket; the
cutoff. Many programs share a row, except in the last launch. Their results are added in a fixed order, so that the
cutoff does not depend on timing. Ties at the cutoff are kept from the lowest token id on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.fast_math import at_least, fast_exp
from specpipe_kernels.sampling.device.kernel_args import DraftArgs
from specpipe_kernels.sampling.device.logit_rows import (
    NOWHERE,
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
    cutoff_of_candidates,
    load_candidates,
    lowest_from,
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

MAX_CANDIDATES = 8192
"""Candidates of a row that one program can hold. With more, it searches the row itself, which is slow."""
MIN_LIST_SIZE = 1024
"""Smallest list of candidates of one part of a row, which may have more than its share. With more, likewise."""
# Low bits of the fp32 form that are always zero.
_UNUSED_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


class FilterArgs(NamedTuple):
    """Temperature and filters of R requests as an argument of a kernel; see `SamplingTensors`."""

    temperature: Tensor
    """[R] fp32."""
    top_k: Tensor
    """[R] int32."""
    top_p: Tensor
    """[R] fp32."""
    min_p: Tensor
    """[R] fp32."""


class CandidateLists(NamedTuple):
    """Tokens among which the cutoff of an item lies, listed by the part of the row that holds them."""

    tokens: Tensor
    """[items, parts, list_size] int32."""
    counts: Tensor
    """[items, parts] int32: candidates of each part; more than `list_size` where not all are listed."""
    running: Tensor
    """[items, parts] int32: scratch memory for cumulative counts."""


@triton.jit
def _locate_row(
    source, usage, filters, stride_draft, width, parts,
    BONUS: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """Returns a program's item, part and request, its row, temperature, k (0: off), p, and true if it has work."""
    item = tl.program_id(0) // parts
    request = item // width
    position = item % width
    temp = tl.load(filters.temperature + request)
    k = tl.load(filters.top_k + request)
    p = tl.load(filters.top_p + request)
    row = row_pointer(source, request, position)
    in_use = count_positions(usage.tokens, stride_draft, usage.counts, request, width, K_PAD, BONUS)
    k = tl.where((k > 0) & (k < source.vocab), k, 0)
    return item, tl.program_id(0) % parts, request, row, temp, k, p, (position < in_use) & (temp > 0.0)


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps"])
def _extent_kernel(
    source, usage, filters, stride_draft, width, parts, tops, bottoms, steps,
    BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores the largest and the smallest finite logit of a span."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, _, _, _, in_use = _locate_row(source, usage, filters, stride_draft, width, parts, BONUS, K_PAD)
    if ~in_use:
        return
    begin, end = span_of(part, steps, source.vocab, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    smallest = tl.full([BLOCK], float("inf"), tl.float32)
    x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, source.vocab, BLOCK)
        largest = tl.maximum(largest, x)
        smallest = tl.minimum(smallest, tl.where(x > float("-inf"), x, float("inf")))
        x = following
    partial = item.to(tl.int64) * parts + part
    tl.store(tops + partial, tl.max(largest))
    tl.store(bottoms + partial, tl.min(smallest))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps", "extents", "further"])
def _weigh_kernel(
    source, usage, filters, stride_draft, width, parts, tops, bottoms,
    extents, before, weights, steps, further,
    BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Stores the weight of a span at or above each threshold; if further != 0, thresholds inside the first bracket."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, temp, k, p, in_use = _locate_row(
        source, usage, filters, stride_draft, width, parts, BONUS, K_PAD
    )
    if ~in_use | ((k == 0) & ~(p < 1.0)):
        return
    begin, end = span_of(part, steps, source.vocab, BLOCK)
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, source.vocab)
    inverse = inverse_temperature(temp)
    top, bottom = load_extent(tops, bottoms, item, extents, PARTS)
    thresholds = first_thresholds(top, bottom, k, p, temp, source.vocab)
    if further != 0:
        low, high, _above, _target = first_bracket(before, thresholds, item, parts, k, p, PARTS)
        thresholds = further_thresholds(low, high, top)
    sums = tl.zeros([BINS, BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, source.vocab, BLOCK)
        weight = tl.where(k > 0, 1.0, fast_exp((x - top) * inverse))
        sums += at_least(x[None, :], thresholds[:, None]) * weight[None, :]
        x = following
    tl.store(weights + (item.to(tl.int64) * parts + part) * BINS + tl.arange(0, BINS), tl.sum(sums, 1))


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "steps", "extents", "list_size"])
def _list_kernel(
    source, usage, filters, stride_draft, width, parts, tops, bottoms, extents, first, second,
    steps, candidates, list_size, brackets,
    BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Lists and counts the tokens of a span in the bracket.

    brackets [items, 5]: the largest logit, the bracket's two ends, the weight above the list, and the weight to reach,
    NaN where nothing is cut off.
    """
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, part, _, row, temp, k, p, in_use = _locate_row(
        source, usage, filters, stride_draft, width, parts, BONUS, K_PAD
    )
    searched = (k > 0) | (p < 1.0)
    if ~in_use | ~(searched | (part == 0)):
        return
    begin, end = span_of(part, steps, source.vocab, BLOCK)
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, source.vocab)
    top, bottom = load_extent(tops, bottoms, item, extents, PARTS)
    thresholds = first_thresholds(top, bottom, k, p, temp, source.vocab)
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
    # With top-k, all tokens that it keeps are listed, as candidates of top-p.
    high = tl.where(k > 0, float("inf"), high)
    if ~searched:
        return
    partial = item.to(tl.int64) * parts + part
    count = tl.zeros([], tl.int32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, source.vocab, BLOCK)
        taken = ((x >= low) & (x < high) & (x > float("-inf"))).to(tl.int32)
        here = tl.sum(taken)
        if here > 0:
            place = count + tl.cumsum(taken, 0) - 1
            listed = candidates.tokens + partial * list_size + place
            tl.store(listed, start + lane, mask=(taken == 1) & (place < list_size))
        count += here
        x = following
    tl.store(candidates.counts + partial, count)


@triton.jit(do_not_specialize=["width", "stride_draft", "parts", "list_size", "log_parts"])
def _cut_kernel(
    source, usage, filters, stride_draft, width, parts,
    candidates, list_size, brackets, log_parts, out,
    BONUS: tl.constexpr, K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    MOST: tl.constexpr, UNUSED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores the bounds of a row, found among the listed tokens."""
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item, _, request, row, temp, k, p, in_use = _locate_row(
        source, usage, filters, stride_draft, width, 1, BONUS, K_PAD
    )
    if ~in_use:
        return
    floor = tl.load(filters.min_p + request)
    top = tl.load(brackets + 5 * item)
    low = tl.load(brackets + 5 * item + 1)
    high = tl.load(brackets + 5 * item + 2)
    above = tl.load(brackets + 5 * item + 3)
    target = tl.load(brackets + 5 * item + 4)
    logit = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], NOWHERE, tl.int32)
    if target == target:
        inverse = inverse_temperature(temp)
        all_listed, xs, tokens = load_candidates(row, candidates, item, parts, list_size, log_parts, PARTS, MOST)
        if k > 0:
            logit, token = cutoff_of_candidates(
                xs, tokens, all_listed, above, target, low, high, row, source.vocab, top, inverse, logit, token,
                False, UNUSED, BLOCK,
            )  # fmt: skip
            high = top  # top-p may cut off much more
            weights = weight_of(xs, tokens, source.vocab, top, inverse, logit, token, True)
            target = p * weight_from(
                float("-inf"), xs, weights, all_listed, row, source.vocab, top, inverse, logit, token, True, BLOCK
            )
        if p < 1.0:
            logit, token = cutoff_of_candidates(
                xs, tokens, all_listed, above, target, low, high, row, source.vocab, top, inverse, logit, token,
                True, UNUSED, BLOCK,
            )  # fmt: skip
    least = tl.where(floor > 0.0, lowest_from(top, temp * tl.log(tl.where(floor > 0.0, floor, 1.0))), float("-inf"))
    tl.store(out.token + item, tl.where(least > logit, NOWHERE, token))  # min-p comes last
    tl.store(out.logit + item, tl.maximum(least, logit))


def truncation_bounds(rows: LogitRows, sampling: SamplingTensors) -> Bounds:
    """Returns the bounds [items] of `rows`; undefined where a row is greedy or not in use."""
    like, items = rows.logits, rows.items
    wide = row_tiling(like.device, rows.vocab, items)
    cut = row_tiling(like.device, rows.vocab, items, warps=1, waves=8)
    filters = FilterArgs(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    located = rows.args(), DraftArgs(rows.draft_tokens, rows.num_drafts), filters, rows.stride_draft, rows.width
    common: dict[str, Any] = {
        "BONUS": rows.bonus, "K_PAD": rows.k_pad, **launch_options(like),
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
    list_size = min(cut.steps * cut.tile, max(MIN_LIST_SIZE, 2 * MAX_CANDIDATES // cut.parts))
    candidates = CandidateLists(
        int32s(like, items, cut.parts, list_size), int32s(like, items, cut.parts), int32s(like, items, cut.parts)
    )
    brackets = floats(like, items, 5)
    _list_kernel[(items * cut.parts,)](
        *located, cut.parts, *extents, *weights, cut.steps, candidates, list_size, brackets,
        BLOCK=cut.tile, num_warps=cut.warps, **common,
    )  # fmt: skip
    bounds = Bounds(floats(like, items), int32s(like, items))
    _cut_kernel[(items,)](
        *located, cut.parts, candidates, list_size, brackets, cut.parts.bit_length(), bounds,
        BLOCK=wide.tile, MOST=MAX_CANDIDATES, UNUSED=_UNUSED_BITS[like.dtype], num_warps=max(1, MAX_CANDIDATES // 512),
        **common,
    )  # fmt: skip
    return bounds
