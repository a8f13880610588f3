"""Verification of drafts: one pass over the rows of logits of each request, in one launch.

A program scans a span of the vocabulary of one row. The last program of a request combines the spans, decides how many
drafts are accepted, and writes the round's output. Drafts after a rejected one need no scan: a launch may cover only
positions `first` .. `first` + `width` - 1, of the requests that accepted all earlier drafts (STAGED). The bonus
position of a random row is not scanned: the draw of its token reads it.
Shapes: R requests, K drafts at most; statistics of p per item r * (K+1) + i, of q per item r * K + i.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.sampling.device.kernel_args import (
    NO_LOGITS,
    DraftArgs,
    ScanResults,
    SpanStatistics,
    StreamArgs,
    VerdictArgs,
)
from specpipe_kernels.sampling.device.logit_rows import (
    floats,
    int32s,
    int64s,
    inverse_temperature,
    is_last,
    load_drafts,
    load_tile,
    max_programs,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.philox import uniform
from specpipe_kernels.sampling.device.row_spans import (
    best_tokens,
    draw_from_span,
    largest_of_span,
    mass_of_span,
    row_lse,
    span_of,
)
from specpipe_kernels.sampling.verification.block_verification import block_length
from specpipe_kernels.sampling.verification.distributions import Distribution, draft_log_probs, draft_logits
from specpipe_kernels.sampling.verification.emit import add_counts, emit
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

# Verification method of random rows. Greedy rows are compared with their largest logits, except under SYNTHETIC.
GREEDY, INVARIANT, STANDARD, BLOCK_WISE, SYNTHETIC = (tl.constexpr(i) for i in range(5))
METHOD_CODES = {"invariant": INVARIANT, "standard": STANDARD, "block": BLOCK_WISE, "synthetic": SYNTHETIC}
# More registers would leave too few warps to hide memory latency. With few programs, registers are available.
MAX_REGISTERS, FEW_REGISTERS = 64, 128
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
_BLOCK = tl.constexpr(int(Purpose.BLOCK))
_INVARIANT = tl.constexpr(int(Purpose.INVARIANT))


@triton.jit
def prefix_weights(log_p, log_q, count, K_PAD: tl.constexpr):
    """Returns [K_PAD] weights of prefixes: entry i is p_(i+1) = min(p_i P(x_(i+1)) / Q(x_(i+1)), 1), with p_0 = 1."""
    i = tl.arange(0, K_PAD)
    ratio = tl.where(log_q > float("-inf"), tl.exp(log_p - log_q), 0.0)
    weights = tl.zeros([K_PAD], tl.float32)
    last = 1.0
    for j in range(count):
        last = tl.minimum(last * tl.sum(tl.where(i == j, ratio, 0.0)), 1.0)
        weights = tl.where(i == j, last, weights)
    return weights


@triton.jit
def _scan_span(
    row, x, vocab, part, steps, temp, seed, at, bounds, item, partial,
    part_value, part_reference, part_token, METHOD: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores statistics of a span whose first tile is x: its largest logit, best draw, or mass, as METHOD needs."""
    begin, end = span_of(part, steps, vocab, BLOCK)
    inverse = inverse_temperature(temp)
    if (METHOD == GREEDY) | (temp == 0.0):
        value, token = largest_of_span(row, x, begin, end, vocab, BLOCK)
        tl.store(part_token + partial, token)
    elif METHOD == INVARIANT:
        value, token = draw_from_span(
            row, x, begin, end, vocab, inverse, bounds, item, seed, at, 0, _INVARIANT,
            TRUNCATED, BLOCK,
        )  # fmt: skip
        tl.store(part_token + partial, token)
    else:
        value, reference = mass_of_span(row, x, begin, end, vocab, inverse, bounds, item, TRUNCATED, BLOCK)
        tl.store(part_reference + partial, reference)
    tl.store(part_value + partial, value)


@triton.jit
def _synthetic_rate(rates, i, k):
    """Returns the probability that draft i is accepted, given that all earlier ones are."""
    rate = tl.load(rates + i, mask=i < k, other=0.0)
    previous = tl.load(rates + i - 1, mask=(i > 0) & (i < k), other=1.0)
    return tl.where(previous > 0.0, rate / previous, 0.0)


@triton.jit(do_not_specialize=["k", "stride_draft", "stride_lse", "first", "width", "p_parts", "q_parts", "steps"])
def _verify_kernel(
    p, q, proposals, sampling, bonus_tokens, rates, p_spans, q_spans, counters, results, out, counts,
    stride_draft, stride_lse, p_parts, q_parts, steps, k, first, width,
    METHOD: tl.constexpr, K_PAD: tl.constexpr, STAGED: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    ONE_HOT: tl.constexpr = q.logits is None
    SCAN_Q: tl.constexpr = q_spans.scores is not None
    TRUNCATED: tl.constexpr = p.bounds.logit is not None
    wait_for_inputs(PDL)
    let_next_start(PDL)
    part = tl.program_id(0) % p_parts
    slot = tl.program_id(0) // p_parts
    if SCAN_Q:
        parts = tl.maximum(p_parts, q_parts)
        part = tl.program_id(0) % parts
        slot = tl.program_id(0) // parts
        request = slot // (2 * width)
        slot = slot % (2 * width)
    else:
        request = slot // width
        slot = slot % width
    position = first + slot % width
    is_q = slot >= width
    item = request * (k + 1) + position
    # Independent loads are issued before any result is used: the first tile overlaps their latency.
    temp = tl.load(sampling.temperature + request)
    seed = tl.load(sampling.seeds + request)
    at = tl.load(sampling.positions + request)
    row = row_pointer(p, request, position)
    in_use = ~is_q & (part < p_parts)
    if p.row_map is not None:
        in_use = in_use & (position < tl.load(p.row_map + request + 1) - tl.load(p.row_map + request))
    if STAGED:
        ended = (tl.load(out.accepted + request) != first) | (tl.load(out.status + request) != 0)
        in_use = in_use & ((first == 0) | ~ended)
    if bonus_tokens is not None:
        in_use = in_use & (position < k)
    elif (METHOD == STANDARD) | (METHOD == BLOCK_WISE) | (METHOD == SYNTHETIC):  # noqa: SIM102  # decided when compiled
        if position == k:
            in_use = in_use & ~(temp > 0.0)
    x = load_tile(row, part * steps * BLOCK + tl.arange(0, BLOCK), tl.where(in_use, p.vocab, 0))
    i = tl.arange(0, K_PAD)
    count, drafts = load_drafts(proposals.tokens, stride_draft, proposals.counts, request, k, K_PAD)
    random = temp > 0.0
    if METHOD == GREEDY:
        random = temp != temp
    matched = ~random
    if METHOD == INVARIANT:
        matched = temp == temp
    end = tl.minimum(first + width, count)  # end of the drafts that this launch verifies
    last_row = count
    if bonus_tokens is None:
        last_row = tl.where(matched, count + 1, count)
    rows = tl.maximum(tl.minimum(first + width, last_row) - first, 0)
    drafted = (i >= first) & (i < end)
    verified = drafted & (i < tl.where(random, end, 0))
    x_p = tl.zeros([K_PAD], tl.float32)
    x_q = tl.zeros([K_PAD], tl.float32)
    lse_q = tl.zeros([K_PAD], tl.float32)
    if (METHOD == STANDARD) | (METHOD == BLOCK_WISE) | (METHOD == SYNTHETIC):
        x_p = draft_logits(p, request, i, drafts, verified)
        if not ONE_HOT:
            x_q = draft_logits(q, request, i, drafts, verified)
            if not SCAN_Q:
                group = request.to(tl.int64)
                if q.row_map is not None:
                    group = tl.load(q.row_map + request).to(tl.int64)
                lse_q = tl.load(proposals.lse + group * stride_lse + i, mask=verified, other=0.0)
    idle = False
    if STAGED:
        idle = (first > 0) & (ended | (rows == 0))
    # A request without rows uses one program, which writes the result.
    used = ((position - first < rows) & (part < p_parts)) | ((position == first) & (part == 0))
    expected = tl.maximum(rows * p_parts, 1)
    if SCAN_Q:
        q_rows = tl.where(random, tl.maximum(end - first, 0), 0)
        used = tl.where(is_q, (position - first < q_rows) & (part < q_parts), used)
        expected += q_rows * q_parts
    if idle | ~used:
        return
    u = uniform(seed, at + i, i, _BLOCK if METHOD == BLOCK_WISE else _ACCEPT)
    if SCAN_Q and is_q:
        q_item = request * k + position
        q_row = row_pointer(q, request, position)
        y = load_tile(q_row, part * steps * BLOCK + tl.arange(0, BLOCK), q.vocab)
        _scan_span(
            q_row, y, q.vocab, part, steps, temp, seed, at + position, q.bounds, q_item,
            q_item.to(tl.int64) * q_parts + part, q_spans.scores, q_spans.references, p_spans.tokens,
            METHOD, TRUNCATED, BLOCK,
        )  # fmt: skip
    if ~is_q:
        _scan_span(
            row, x, tl.where(rows > 0, p.vocab, 0), part, steps, temp, seed, at + position,
            p.bounds, item, item.to(tl.int64) * p_parts + part,
            p_spans.scores, p_spans.references, p_spans.tokens, METHOD, TRUNCATED, BLOCK,
        )  # fmt: skip
    if ~is_last(counters, request, expected):
        return

    here = (i >= first) & (i < first + rows)
    items = request * (k + 1) + i
    inverse = inverse_temperature(temp)
    lse = tl.zeros([K_PAD], tl.float32)
    best = tl.full([K_PAD], -1, tl.int32)
    if matched:
        status, best = best_tokens(p_spans.scores, p_spans.tokens, items, p_parts, here, PARTS)
    else:
        status, lse = row_lse(p_spans.scores, p_spans.references, items, inverse, p_parts, here, PARTS)
    status = tl.where(here, status, 0)
    accept = drafts == best
    if METHOD == SYNTHETIC:
        accept = u < _synthetic_rate(rates, i, k)
    if (METHOD == STANDARD) | (METHOD == BLOCK_WISE) | (METHOD == SYNTHETIC):
        tl.store(results.p_lse + items, lse, mask=verified)
        log_p = draft_log_probs(x_p, drafts, p.bounds, items, lse, inverse, TRUNCATED)
        log_q = tl.zeros([K_PAD], tl.float32)
        if not ONE_HOT:
            q_items = request * k + i
            if SCAN_Q:
                q_status, lse_q = row_lse(
                    q_spans.scores, q_spans.references, q_items, inverse, q_parts, verified, PARTS
                )
            else:
                q_status = tl.where(lse_q == float("-inf"), 2, tl.where(lse_q < float("inf"), 0, 1))
            tl.store(results.q_lse + items, lse_q, mask=verified)
            status = tl.where(verified & (status == 0), q_status, status)
            log_q = draft_log_probs(x_q, drafts, q.bounds, q_items, lse_q, inverse, TRUNCATED)
        if METHOD == STANDARD:
            q_draft = tl.exp(log_q)
            accept = tl.where(random, (u * q_draft < tl.exp(log_p)) & (q_draft > 0.0), accept)
    ok = accept & (status == 0)
    accepted = tl.minimum(tl.min(tl.where(drafted & ~ok, i, K_PAD)), end)
    final_status = tl.sum(tl.where(i == accepted, status, 0))
    if METHOD == BLOCK_WISE:
        if random:
            final_status = tl.max(tl.where(drafted, status, 0))
            weights = prefix_weights(log_p, log_q, count, K_PAD)
            tl.store(results.weight + request * (k + 1), 1.0)
            tl.store(results.weight + items + 1, weights, mask=drafted)
            mass = tl.zeros([K_PAD], tl.float32)
            if ONE_HOT:
                after = tl.sum(tl.where(i[None, :] == i[:, None] + 1, tl.exp(log_p)[None, :], 0.0), 1)
                mass = weights * (1.0 - after)
            accepted = block_length(weights, mass, u, count, K_PAD)
            if not ONE_HOT:
                # h_i <= p_i, so S_i matters only where eta_i <= p_i and no longer prefix is accepted for certain.
                open_ = (i + 1 < count) & (i + 1 > accepted) & (u <= weights) & (final_status == 0)
                bits = tl.sum(tl.where(open_, (tl.zeros([K_PAD], tl.int64) + 1) << i.to(tl.int64), 0))
                tl.store(results.undecided + request, bits)
        elif not ONE_HOT:
            tl.store(results.undecided + request, tl.zeros([], tl.int64))
    last = tl.sum(tl.where(i == accepted, best, 0))
    last = tl.where(matched, last, -1)
    if bonus_tokens is not None:
        last = tl.where(accepted == count, tl.load(bonus_tokens + request).to(tl.int32), last)
    emit(
        out.tokens, out.emitted, out.accepted, out.status, drafts, request, k, accepted, last, final_status, K_PAD,
    )  # fmt: skip
    if counts is not None:
        finished = matched & (final_status == 0) & ((accepted < end) | (first + rows >= last_row))
        if finished:
            add_counts(counts, k, accepted, count, K_PAD)


def verify(
    p: Distribution,
    q: Distribution | None,
    sampling: SamplingTensors,
    positions: Tensor,
    out: RejectionOutput,
    *,
    method: tl.constexpr,
    stages: list[tuple[int, int]],
    draft_lse: Tensor | None,
    bonus_tokens: Tensor | None,
    rates: Tensor | None,
    counts: Tensor | None,
) -> ScanResults:
    """Fills `out`, except the final tokens of random rows, which stay -1; returns the statistics for their draw.

    method: one of the constants above. stages: (first position, number of positions) of each launch. draft_lse,
    bonus_tokens, rates and counts: see `specpipe_kernels.rejection_sample`.
    """
    rows, q_rows = p.rows, q.rows if q else p.rows
    like, requests, k = rows.logits, rows.requests, rows.width - 1
    scan_q = q is not None and draft_lse is None
    # 32 bytes per thread; with noise the four entries of one Philox call, so that threads need not exchange values.
    lanes = 4 if method.value == INVARIANT.value else 32 // like.element_size()
    scanned_rows = requests * stages[0][1] * (2 if scan_q else 1)
    cut = row_tiling(like.device, max(rows.vocab, q_rows.vocab), scanned_rows, lanes=lanes)
    p_parts, q_parts = cdiv(rows.vocab, cut.steps * cut.tile), cdiv(q_rows.vocab, cut.steps * cut.tile)
    spans = SpanStatistics(
        floats(like, requests, k + 1, p_parts),
        floats(like, requests, k + 1, p_parts),
        int32s(like, requests, k + 1, p_parts),
    )
    q_spans = SpanStatistics(None, None, None)
    if scan_q:
        q_spans = SpanStatistics(floats(like, requests, k, q_parts), floats(like, requests, k, q_parts), None)
    drafts = DraftArgs(rows.draft_tokens, rows.num_drafts, draft_lse)
    streams = StreamArgs(sampling.temperature, sampling.seed, positions)
    verdict = VerdictArgs(*out[:4])
    by_block = method.value == BLOCK_WISE.value
    done = ScanResults(
        floats(like, requests, k + 1),
        floats(like, requests, k + 1),
        floats(like, requests, k + 1) if by_block else None,
        int64s(like, requests) if by_block else None,
    )
    programs = requests * (2 * cut.parts if scan_q else p_parts)
    few = programs * rows.width <= max_programs(like.device) // 2
    for first, width in stages:
        _verify_kernel[(programs * width,)](
            p.args, q.args if q else NO_LOGITS, drafts, streams, bonus_tokens, rates, spans, q_spans,
            arrivals(like, requests), done, verdict, counts,
            rows.stride_draft, 0 if draft_lse is None else draft_lse.stride(0), p_parts, q_parts, cut.steps, k, first,
            width, METHOD=method.value, K_PAD=rows.k_pad, STAGED=len(stages) > 1,
            BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, maxnreg=FEW_REGISTERS if few else MAX_REGISTERS,
            **launch_options(like),
        )  # fmt: skip
    return done
