"""Verification against each row's own token: the largest logit of greedy rows, the draw of `invariant` for random ones.

A program scans a span of the vocabulary of one row. The last program of a request combines the spans, decides how many
drafts are accepted, and writes the round's output; the token after them is a row's own, so that no draw follows. Drafts
after a rejected one need no scan: a launch may cover only positions `first` .. `first` + `width` - 1, of the requests
that accepted all earlier drafts (STAGED).
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import (
    NO_SPANS,
    DraftArgs,
    ScanMemory,
    SpanStatistics,
    StreamArgs,
    VerdictArgs,
)
from specpipe_kernels.sampling.device.logit_rows import (
    floats,
    int32s,
    inverse_temperature,
    is_last,
    load_drafts,
    load_tile,
    max_programs,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.row_spans import (
    best_referred_tokens,
    best_tokens,
    draw_from_span,
    largest_of_span,
    span_of,
    status_of_score,
)
from specpipe_kernels.sampling.verification.distributions import Distribution
from specpipe_kernels.sampling.verification.draft_scan import FEW_REGISTERS, MAX_REGISTERS, has_row, load_stream
from specpipe_kernels.sampling.verification.emit import emit_verified
from specpipe_kernels.types import Purpose

LANES = 4  # entries of a tile per thread where noise is drawn: those of one Philox call, so threads exchange no values
_INVARIANT = tl.constexpr(int(Purpose.INVARIANT))


@triton.jit
def _store_best(
    p, row, x, vocab, part, steps, item, partial, temp, seed, at, memory,
    ALL_GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the largest logit or score of a span whose first tile is x, and its token.

    A score that has a reference is stored with it in `memory.q`, and +inf in its place.
    """
    TRUNCATED: tl.constexpr = p.bounds.logit is not None
    begin, end = span_of(part, steps, vocab, BLOCK)
    if ALL_GREEDY | ~(temp > 0.0):
        value, token = largest_of_span(row, x, begin, end, vocab, BLOCK)
    else:
        value, token, reference = draw_from_span(
            row, x, begin, end, vocab, inverse_temperature(temp), p.bounds, item, seed, at, 0, _INVARIANT,
            TRUNCATED, BLOCK,
        )  # fmt: skip
        if not ALL_GREEDY:
            referred = reference != 0.0
            tl.store(memory.q.scores + partial, value, mask=referred)
            tl.store(memory.q.references + partial, reference, mask=referred)
            value = tl.where(referred, float("inf"), value)
    tl.store(memory.p.tokens + partial, token)
    tl.store(memory.p.scores + partial, value)


@triton.jit(do_not_specialize=["stride_draft", "parts", "steps", "k", "first", "width"])
def _match_kernel(
    p, proposals, streams, memory, out, stride_draft, parts, steps, k, first, width,
    ALL_GREEDY: tl.constexpr, STAGED: tl.constexpr, K_PAD: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    let_next_start(PDL)
    part = tl.program_id(0) % parts
    slot = tl.program_id(0) // parts
    request = slot // width
    position = first + slot % width
    item = request * (k + 1) + position
    # Independent loads are issued before any result is used: the first tile overlaps their latency.
    temp, seed, at = load_stream(streams, request)
    row = row_pointer(p, request, position)
    in_use = has_row(p, proposals, request, position, k)
    if STAGED:
        ended = (tl.load(out.accepted + request) != first) | (tl.load(out.status + request) != 0)
        in_use = in_use & ((first == 0) | ~ended)
    x = load_tile(row, part * steps * BLOCK + tl.arange(0, BLOCK), tl.where(in_use, p.vocab, 0))
    count, drafts = load_drafts(proposals.tokens, stride_draft, proposals.counts, request, k, K_PAD)
    end = tl.minimum(first + width, count)  # end of the drafts that this launch verifies
    last_row = count
    if proposals.bonus_tokens is None:
        last_row = count + 1
    rows = tl.maximum(tl.minimum(first + width, last_row) - first, 0)
    idle = False
    if STAGED:
        idle = (first > 0) & (ended | (rows == 0))
    # A request without rows uses one program, which writes the result.
    used = (position - first < rows) | ((position == first) & (part == 0))
    if idle | ~used:
        return
    # In a block of its own: the compiler then issues the loads of the first tile before it waits for the drafts.
    if in_use:
        _store_best(
            p, row, x, tl.where(rows > 0, p.vocab, 0), part, steps, item, item.to(tl.int64) * parts + part,
            temp, seed, at + position, memory, ALL_GREEDY, BLOCK,
        )  # fmt: skip
    if ~is_last(memory.arrivals, request, tl.maximum(rows * parts, 1)):
        return

    i = tl.arange(0, K_PAD)
    here = (i >= first) & (i < first + rows)
    items = request * (k + 1) + i
    score, best = best_tokens(memory.p.scores, memory.p.tokens, items, parts, here, PARTS)
    if not ALL_GREEDY:
        referred = tl.max(tl.where(score == float("inf"), 1, 0)) == 1
        if referred:
            score, best = best_referred_tokens(
                memory.p.scores, memory.p.tokens, memory.q, items, inverse_temperature(temp), parts, here, PARTS
            )
    status = tl.where(here, status_of_score(score), 0)
    failed = (i >= first) & (i < end) & ((drafts != best) | (status != 0))
    accepted = tl.minimum(tl.min(tl.where(failed, i, K_PAD)), end)
    final_status = tl.sum(tl.where(i == accepted, status, 0))
    complete = (accepted < end) | (first + rows >= last_row)
    emit_verified(out, proposals, request, drafts, count, k, accepted, best, final_status, complete, K_PAD)


def match_drafts(
    p: Distribution,
    proposals: DraftArgs,
    streams: StreamArgs,
    verdict: VerdictArgs,
    *,
    all_greedy: bool,
    stages: list[tuple[int, int]],
) -> None:
    """Fills `verdict`. stages: (first position, number of positions) of each launch."""
    rows, like = p.rows, p.rows.logits
    requests, k = rows.requests, rows.width - 1
    lanes = 32 // like.element_size() if all_greedy else LANES  # 32 bytes per thread
    cut = row_tiling(like.device, rows.vocab, requests * stages[0][1], lanes=lanes)
    shape = requests, k + 1, cut.parts
    spans = SpanStatistics(floats(like, *shape), None, int32s(like, *shape))
    referred = NO_SPANS if all_greedy else SpanStatistics(floats(like, *shape), floats(like, *shape), None)
    few = requests * cut.parts * rows.width <= max_programs(like.device) // 2
    for first, width in stages:
        _match_kernel[(requests * cut.parts * width,)](
            p.args, proposals, streams, ScanMemory(spans, referred, arrivals(like, requests)), verdict,
            rows.stride_draft, cut.parts, cut.steps, k, first, width,
            ALL_GREEDY=all_greedy, STAGED=len(stages) > 1, K_PAD=rows.k_pad, BLOCK=cut.tile, PARTS=cut.parts_pad,
            num_warps=cut.warps, maxnreg=FEW_REGISTERS if few else MAX_REGISTERS, **launch_options(like),
        )  # fmt: skip
