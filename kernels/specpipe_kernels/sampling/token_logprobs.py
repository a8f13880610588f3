"""Log-probabilities of emitted tokens with Triton: one launch, after the bounds that truncation needs.

A program scans a span of one emitted row; the last one of a row combines the spans. The most likely tokens are kept as
64-bit keys (logit above token) whose order is that of the ranking, so the vocabulary is not sorted.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.sampling.device.kernel_args import DraftArgs, SpanStatistics
from specpipe_kernels.sampling.device.logit_rows import (
    LogitRows,
    floats,
    int64s,
    inverse_temperature,
    is_kept,
    is_last,
    load_drafts,
    load_part,
    load_tile,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.ranked_keys import rank, unrank
from specpipe_kernels.sampling.device.row_spans import log_prob, mass_of_span, row_lse, span_of
from specpipe_kernels.sampling.truncation.truncation_bounds import truncation_bounds
from specpipe_kernels.types import Bounds, SamplingTensors, TokenLogprobs


@triton.jit
def _lowest_keys(SIZE: tl.constexpr):
    """Returns [SIZE] keys below those of all entries."""
    return rank(tl.full([SIZE], float("-inf"), tl.float32), tl.full([SIZE], 0x7FFFFFFF, tl.int32))


@triton.jit
def _top_of_span(row, begin, end, vocab, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the [TOP] largest keys of a span, descending."""
    lane = tl.arange(0, BLOCK)
    best = _lowest_keys(TOP)
    for start in range(begin, end, BLOCK):
        keys = rank(load_tile(row, start + lane, vocab), start + lane)
        best = tl.topk(tl.interleave(best, tl.topk(keys, TOP)), TOP)
    return best


@triton.jit(do_not_specialize=["stride_tokens", "width", "parts", "steps", "n"])
def _token_logprobs_kernel(
    source, emission, temperature, spans, part_keys, counters, out, stride_tokens, width, parts, steps, n,
    K_PAD: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    TRUNCATED: tl.constexpr = source.bounds.logit is not None
    wait_for_inputs(PDL)
    item = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    request = item // width
    position = item % width
    lane = tl.arange(0, TOP)
    at_top = item.to(tl.int64) * n + lane
    emitted, _ = load_drafts(emission.tokens, stride_tokens, emission.counts, request, width, K_PAD)
    if position >= emitted:
        if part == 0:
            tl.store(out.logprobs + item, float("nan"))
            tl.store(out.top_tokens + at_top, tl.full([TOP], -1, tl.int64), mask=lane < n)
            tl.store(out.top_logprobs + at_top, tl.full([TOP], float("nan"), tl.float32), mask=lane < n)
        return
    temp = tl.load(temperature + request)
    inverse = inverse_temperature(temp)
    row = row_pointer(source, request, position)
    begin, end = span_of(part, steps, source.vocab, BLOCK)
    partial = item.to(tl.int64) * parts + part
    cut = TRUNCATED & (temp > 0.0)
    x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
    if cut:
        mass, reference = mass_of_span(row, x, begin, end, source.vocab, inverse, source.bounds, item, TRUNCATED, BLOCK)
    else:
        mass, reference = mass_of_span(row, x, begin, end, source.vocab, inverse, source.bounds, item, False, BLOCK)
    tl.store(spans.scores + partial, mass)
    tl.store(spans.references + partial, reference)
    if TOP > 1:
        tl.store(part_keys + partial * TOP + lane, _top_of_span(row, begin, end, source.vocab, TOP, BLOCK))
    let_next_start(PDL)
    if ~is_last(counters, item, parts):
        return
    items = item + tl.arange(0, 1)
    _, reference, log_mass = row_lse(spans.scores, spans.references, items, inverse, parts, items == item, PARTS)
    token = tl.load(emission.tokens + request.to(tl.int64) * stride_tokens + position)
    offsets = token + tl.arange(0, 1)
    x = load_tile(row, offsets, source.vocab)
    kept = x > float("-inf")
    if cut:
        kept = is_kept(x, offsets, source.bounds, item, TRUNCATED)
    kept = kept | ((log_mass != log_mass) & (offsets < source.vocab))  # NaN, also where the token's own logit is NaN
    tl.store(out.logprobs + items, tl.where(kept, log_prob(x, reference, inverse, log_mass), float("-inf")))
    if TOP > 1:
        place = tl.arange(0, PARTS * TOP)
        in_range = place < parts * TOP
        keys = load_part(part_keys + item.to(tl.int64) * parts * TOP + place, in_range, 0)
        keys = tl.where(in_range, keys, _lowest_keys(PARTS * TOP))
        x, tokens = unrank(tl.topk(keys, TOP))
        kept = x > float("-inf")
        if cut:
            kept = is_kept(x, tokens, source.bounds, item, TRUNCATED)
        tl.store(out.top_tokens + at_top, tl.where(kept, tokens, -1).to(tl.int64), mask=lane < n)
        logprobs = log_prob(x, reference, inverse, log_mass)
        tl.store(out.top_logprobs + at_top, tl.where(kept, logprobs, float("nan")), mask=lane < n)


def token_logprobs(
    target_logits: Tensor,
    out_tokens: Tensor,
    num_emitted: Tensor,
    sampling: SamplingTensors,
    *,
    top_n: int = 0,
    cu_rows: Tensor | None = None,
    bounds: Bounds | None = None,
) -> TokenLogprobs:
    """See `specpipe_kernels.token_logprobs`."""
    requests, width = out_tokens.shape
    like, stride = target_logits, target_logits.stride(0)
    rows = LogitRows(
        target_logits, cu_rows, stride if cu_rows is not None else stride * width, stride, target_logits.shape[1],
        requests, width, out_tokens, num_emitted,
    )  # fmt: skip
    out = TokenLogprobs(
        floats(like, requests, width), int64s(like, requests, width, top_n), floats(like, requests, width, top_n)
    )
    if not sampling.truncated or sampling.all_greedy:
        bounds = None
    elif bounds is None:
        bounds = truncation_bounds(rows, sampling)
    cut = row_tiling(like.device, rows.vocab, rows.items)
    top = max(2, power_of_2(top_n)) if top_n else 1
    spans = SpanStatistics(floats(like, rows.items, cut.parts), floats(like, rows.items, cut.parts), None)
    _token_logprobs_kernel[(rows.items * cut.parts,)](
        rows.args(bounds), DraftArgs(out_tokens, num_emitted), sampling.temperature, spans,
        int64s(like, rows.items, cut.parts, top), arrivals(like, rows.items), out,
        rows.stride_draft, width, cut.parts, cut.steps, top_n,
        K_PAD=power_of_2(width), TOP=top, BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps,
        **launch_options(like),
    )  # fmt: skip
    return out
