"""Scan of p and q by the verification methods that compare them, and its launch.

A program scans a span of the vocabulary of one row: of p, or of q unless its log-sum-exps are given. The last program
of a request combines the spans. The bonus position of a random row is not scanned: the draw of its token reads it.
Lanes i = 0 .. K_PAD - 1 are the positions of one request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.sampling.device.kernel_args import (
    NO_LOGITS,
    NO_SPANS,
    DraftArgs,
    ScanMemory,
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
    load_drafts,
    load_tile,
    max_programs,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.row_spans import (
    best_tokens,
    largest_of_span,
    mass_of_span,
    row_lse,
    span_of,
    status_of_score,
)
from specpipe_kernels.sampling.verification.distributions import (
    Distribution,
    draft_log_probs,
    draft_logits,
    split_lse,
)

# More registers would leave too few warps to hide memory latency. With few programs, registers are available.
MAX_REGISTERS, FEW_REGISTERS = 64, 128


class ScannedSpan(NamedTuple):
    """Span of a row that a program scans; scalars on the device."""

    request: Any
    position: Any
    part: Any
    is_q: Any
    """True for a row of q."""


class RequestDrafts(NamedTuple):
    """Drafts of one request, and values of its random stream; scalars and [K_PAD] on the device."""

    temp: Any
    seed: Any
    at: Any
    """Position of the first token that the round emits."""
    num_drafts: Any
    """Number of drafts before the first placeholder."""
    tokens: Any
    """[K_PAD] int64."""
    verified: Any
    """[K_PAD]: true for the drafts of a random row."""
    x_p: Any
    """[K_PAD] fp32: logits of p."""
    x_q: Any
    """[K_PAD] fp32: logits of q."""
    lse_q: Any
    """[K_PAD] fp64 (fp32): log-sum-exps of q, where given."""
    one_hot: Any
    """True if q is one-hot for this request alone; undefined where it is for all."""


class DraftComparison(NamedTuple):
    """Result of a scan [K_PAD]."""

    status: Any
    """`Status` of each row."""
    best: Any
    """Token of the largest logit of each row of greedy requests; -1 for random ones."""
    log_p: Any
    """Log-probabilities of the drafts."""
    log_q: Any


@triton.jit
def load_stream(streams, request):
    """Returns temperature, seed, and position of the first token that the round emits."""
    return (
        tl.load(streams.temperature + request),
        tl.load(streams.seeds + request),
        tl.load(streams.positions + request),
    )


@triton.jit
def has_row(p, proposals, request, position, k):
    """Returns true if p has a row of logits at a position: ragged rows end earlier, a given bonus token has none."""
    exists = position <= k
    if p.row_map is not None:
        exists = position < tl.load(p.row_map + request + 1) - tl.load(p.row_map + request)
    if proposals.bonus_tokens is not None:
        exists = exists & (position < k)
    return exists


@triton.jit
def _locate_span(memory, p_parts, q_parts, width):
    """Returns the span of this program."""
    SCAN_Q: tl.constexpr = memory.q.scores is not None
    if SCAN_Q:
        parts = tl.maximum(p_parts, q_parts)
        slot = tl.program_id(0) // parts
        request = slot // (2 * width)
        slot = slot % (2 * width)
        span = ScannedSpan(request, slot % width, tl.program_id(0) % parts, slot >= width)
    else:
        slot = tl.program_id(0) // p_parts
        span = ScannedSpan(slot // width, slot % width, tl.program_id(0) % p_parts, slot < 0)
    return span


@triton.jit
def _load_request(
    p, q, proposals, streams, span, stride_draft, stride_lse, p_parts, steps, k,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the first tile of a span of p, and the drafts of its request."""
    ONE_HOT: tl.constexpr = q.logits is None
    BONUS: tl.constexpr = proposals.bonus_tokens is None
    request = span.request
    # Independent loads are issued before any result is used: the first tile overlaps their latency.
    temp, seed, at = load_stream(streams, request)
    row = row_pointer(p, request, span.position)
    in_use = ~span.is_q & (span.part < p_parts) & has_row(p, proposals, request, span.position, k)
    if BONUS and span.position == k:  # a branch, so that other positions do not wait for the temperature
        in_use = in_use & ~(temp > 0.0)
    x = load_tile(row, span.part * steps * BLOCK + tl.arange(0, BLOCK), tl.where(in_use, p.vocab, 0))
    i = tl.arange(0, K_PAD)
    num_drafts, tokens = load_drafts(proposals.tokens, stride_draft, proposals.counts, request, k, K_PAD)
    verified = i < tl.where(temp > 0.0, num_drafts, 0)
    x_p = draft_logits(p, request, i, tokens, verified)
    x_q = tl.zeros([K_PAD], tl.float32)
    lse_q = tl.zeros([K_PAD], tl.float32)
    one_hot = request < 0
    if not ONE_HOT:
        group = request.to(tl.int64)
        if q.row_map is not None:
            group = tl.load(q.row_map + request).to(tl.int64)
            one_hot = group < 0
        x_q = draft_logits(q, request, i, tokens, verified & ~one_hot)
        if proposals.lse is not None:
            lse_q = tl.load(proposals.lse + group * stride_lse + i, mask=verified & ~one_hot, other=0.0)
    return x, RequestDrafts(temp, seed, at, num_drafts, tokens, verified, x_p, x_q, lse_q, one_hot)


@triton.jit
def _programs_of_request(proposals, memory, span, drafts, p_parts, q_parts):
    """Returns the number of rows of p to scan, true if this program has work, and the number of those that have."""
    random = drafts.temp > 0.0
    rows = drafts.num_drafts
    if proposals.bonus_tokens is None:
        rows = tl.where(random, rows, rows + 1)
    rows = tl.maximum(rows, 0)
    # A request without rows uses one program, which writes the result.
    used = ((span.position < rows) & (span.part < p_parts)) | ((span.position == 0) & (span.part == 0))
    expected = tl.maximum(rows * p_parts, 1)
    if memory.q.scores is not None:
        q_rows = tl.where(random & ~drafts.one_hot, tl.maximum(drafts.num_drafts, 0), 0)
        used = tl.where(span.is_q, (span.position < q_rows) & (span.part < q_parts), used)
        expected += q_rows * q_parts
    return rows, used, expected


@triton.jit
def open_scan(
    p, q, proposals, streams, memory, stride_draft, stride_lse, p_parts, q_parts, steps, k,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns this program's span, its first tile of p, its request's drafts, and `_programs_of_request`."""
    span = _locate_span(memory, p_parts, q_parts, k + 1)
    x, drafts = _load_request(
        p, q, proposals, streams, span, stride_draft, stride_lse, p_parts, steps, k, K_PAD, BLOCK
    )  # fmt: skip
    rows, used, expected = _programs_of_request(proposals, memory, span, drafts, p_parts, q_parts)
    return span, x, drafts, rows, used, expected


@triton.jit
def _store_mass(source, row, x, vocab, span, steps, inverse, item, parts, statistics, BLOCK: tl.constexpr):
    """Stores the mass of a span whose first tile is x."""
    TRUNCATED: tl.constexpr = source.bounds.logit is not None
    begin, end = span_of(span.part, steps, vocab, BLOCK)
    mass, reference = mass_of_span(row, x, begin, end, vocab, inverse, source.bounds, item, TRUNCATED, BLOCK)
    at = item.to(tl.int64) * parts + span.part
    tl.store(statistics.references + at, reference)
    tl.store(statistics.scores + at, mass)


@triton.jit
def store_span(p, q, memory, span, drafts, x, rows, p_parts, q_parts, steps, k, BLOCK: tl.constexpr):
    """Stores statistics of a span: its mass, or its largest logit where the request is greedy. x: first tile of p."""
    inverse = inverse_temperature(drafts.temp)
    if memory.q.scores is not None and span.is_q:
        row = row_pointer(q, span.request, span.position)
        y = load_tile(row, span.part * steps * BLOCK + tl.arange(0, BLOCK), q.vocab)
        item = span.request * k + span.position
        _store_mass(q, row, y, q.vocab, span, steps, inverse, item, q_parts, memory.q, BLOCK)
    if ~span.is_q:
        row = row_pointer(p, span.request, span.position)
        item = span.request * (k + 1) + span.position
        vocab = tl.where(rows > 0, p.vocab, 0)
        if ~(drafts.temp > 0.0):
            begin, end = span_of(span.part, steps, vocab, BLOCK)
            top, token = largest_of_span(row, x, begin, end, vocab, BLOCK)
            at = item.to(tl.int64) * p_parts + span.part
            tl.store(memory.p.tokens + at, token)
            tl.store(memory.p.scores + at, top)
        else:
            _store_mass(p, row, x, vocab, span, steps, inverse, item, p_parts, memory.p, BLOCK)


@triton.jit
def compare_drafts(
    p, q, memory, results, request, drafts, rows, p_parts, q_parts, k,
    K_PAD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Returns the `DraftComparison` of a request whose spans are stored, and stores log-sum-exps for later launches."""
    ONE_HOT: tl.constexpr = q.logits is None
    TRUNCATED: tl.constexpr = p.bounds.logit is not None
    i = tl.arange(0, K_PAD)
    here = i < rows
    items = request * (k + 1) + i
    verified = drafts.verified
    inverse = inverse_temperature(drafts.temp)
    reference = tl.zeros([K_PAD], tl.float32)
    log_mass = tl.zeros([K_PAD], tl.float32)
    best = tl.full([K_PAD], -1, tl.int32)
    if drafts.temp > 0.0:
        status, reference, log_mass = row_lse(
            memory.p.scores, memory.p.references, items, inverse, p_parts, here, PARTS
        )
    else:
        score, best = best_tokens(memory.p.scores, memory.p.tokens, items, p_parts, here, PARTS)
        status = status_of_score(score)
    status = tl.where(here, status, 0)
    tl.store(results.p_reference + items, reference, mask=verified)
    tl.store(results.p_log_mass + items, log_mass, mask=verified)
    log_p = draft_log_probs(drafts.x_p, drafts.tokens, p.bounds, items, reference, log_mass, inverse, TRUNCATED)
    log_q = tl.zeros([K_PAD], tl.float32)
    if not ONE_HOT:
        q_items = request * k + i
        by_q = verified & ~drafts.one_hot
        if memory.q.scores is not None:
            q_status, reference, log_mass = row_lse(
                memory.q.scores, memory.q.references, q_items, inverse, q_parts, by_q, PARTS
            )
        else:
            reference, log_mass = split_lse(drafts.lse_q, drafts.temp)
            q_status = tl.where(reference == float("-inf"), 2, tl.where(reference < float("inf"), 0, 1))
        reference = tl.where(by_q, reference, 0.0)
        log_mass = tl.where(by_q, log_mass, 0.0)
        tl.store(results.q_reference + items, reference, mask=verified)
        tl.store(results.q_log_mass + items, log_mass, mask=verified)
        status = tl.where(by_q & (status == 0), q_status, status)
        log_q = draft_log_probs(drafts.x_q, drafts.tokens, q.bounds, q_items, reference, log_mass, inverse, TRUNCATED)
        log_q = tl.where(drafts.one_hot, 0.0, log_q)
    return DraftComparison(status, best, log_p, log_q)


def launch_scan(
    kernel: Any,
    p: Distribution,
    q: Distribution | None,
    proposals: DraftArgs,
    streams: StreamArgs,
    verdict: VerdictArgs,
    *,
    by_block: bool,
) -> ScanResults:
    """Launches `kernel`, which scans p and q and decides, and returns the statistics for the draws of final tokens."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    like, requests, k = rows.logits, rows.requests, rows.width - 1
    scan_q = q is not None and proposals.lse is None
    # 32 bytes per thread.
    cut = row_tiling(
        like.device, max(rows.vocab, q_rows.vocab), requests * rows.width * (2 if scan_q else 1),
        lanes=32 // like.element_size(),
    )  # fmt: skip
    p_parts, q_parts = cdiv(rows.vocab, cut.steps * cut.tile), cdiv(q_rows.vocab, cut.steps * cut.tile)
    spans = SpanStatistics(
        floats(like, requests, k + 1, p_parts),
        floats(like, requests, k + 1, p_parts),
        int32s(like, requests, k + 1, p_parts),
    )
    q_spans = NO_SPANS
    if scan_q:
        q_spans = SpanStatistics(floats(like, requests, k, q_parts), floats(like, requests, k, q_parts), None)
    done = ScanResults(
        floats(like, requests, k + 1),
        floats(like, requests, k + 1),
        floats(like, requests, k + 1),
        floats(like, requests, k + 1),
        floats(like, requests, k + 1) if by_block else None,
        int64s(like, requests) if by_block else None,
    )
    programs = requests * rows.width * (2 * cut.parts if scan_q else p_parts)
    few = programs <= max_programs(like.device) // 2
    kernel[(programs,)](
        p.args, q.args if q else NO_LOGITS, proposals, streams, ScanMemory(spans, q_spans, arrivals(like, requests)),
        done, verdict, rows.stride_draft, 0 if proposals.lse is None else proposals.lse.stride(0),
        p_parts, q_parts, cut.steps, k,
        K_PAD=rows.k_pad, BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps,
        maxnreg=FEW_REGISTERS if few else MAX_REGISTERS, **launch_options(like),
    )  # fmt: skip
    return done
