"""The token after the accepted drafts: the recovered or the bonus one, of the one row that a random request ended at.

A program takes a span of that row; the last one of a request combines them. Requests go backwards, because the rows
that verification read last are the ones still in L2.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.emit import add_counts, emit
from specpipe_kernels.triton_ops.pdl import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.philox import gumbel_tile
from specpipe_kernels.triton_ops.rows import (
    NOWHERE,
    arrivals,
    best_of,
    count_drafts,
    cut_of,
    floats,
    int32s,
    inverse_temperature,
    is_kept,
    is_last,
    load_part,
    load_tile,
    row_pointer,
)
from specpipe_kernels.triton_ops.sides import Side, flags, log_residual, tile_log_probs
from specpipe_kernels.triton_ops.tiles import draw_from_span, span_of, status_of
from specpipe_kernels.triton_ops.verify import Verified
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

# Few entries a thread and few registers: enough warps to hide the noise's arithmetic.
TILE, WARPS, MAX_REGISTERS = 1024, 8, 64
_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))
_BONUS = tl.constexpr(int(Purpose.BONUS))


@triton.jit(do_not_specialize=["k", "stride_draft", "parts", "steps", "requests"])
def _draw_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, q_logits, q_map, q_bound_logit, q_bound_token,
    draft_tokens, num_drafts, temperature, seeds, positions, p_lse, q_lse, weight,
    part_top, part_score, part_token, counters, out_tokens, out_emitted, out_accepted, out_status, counts,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft,
    p_vocab, q_vocab, parts, steps, k, requests,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, K_PAD: tl.constexpr,
    WEIGHTED: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    request = requests - 1 - tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    temp = tl.load(temperature + request)
    status = tl.load(out_status + request)
    i = tl.load(out_accepted + request)
    seed = tl.load(seeds + request)
    position = tl.load(positions + request) + i
    count = count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD)
    if (temp == 0.0) | (status != 0):
        return
    rejected = i < count
    inverse = inverse_temperature(temp)
    begin, end = span_of(part, steps, p_vocab, BLOCK)
    item = request * (k + 1) + i
    row = row_pointer(p_logits, p_map, request, i, p_stride_group, p_stride_row, P_MAP)
    partial = request.to(tl.int64) * parts + part
    if rejected:
        shift = tl.load(p_lse + item)
        if WEIGHTED:
            shift -= tl.log(tl.load(weight + item))
        draft = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i)
        q_shift = 0.0
        if not ONE_HOT:
            q_shift = tl.load(q_lse + item)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        tokens = begin + tl.arange(0, BLOCK)
        for start in range(begin, end, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            x = load_tile(row, offsets, p_vocab)
            kept = is_kept(x, offsets, p_bound_logit, p_bound_token, item, TRUNCATED)
            scores = tl.where(kept, x * inverse - shift, float("-inf"))
            if ONE_HOT:
                scores = tl.where(offsets == draft, float("-inf"), scores)
            else:
                _, log_q = tile_log_probs(
                    q_logits, q_map, q_bound_logit, q_bound_token, q_stride_group, q_stride_row, q_vocab, q_shift,
                    request, i, request * k + i, offsets, inverse, Q_MAP, TRUNCATED,
                )  # fmt: skip
                scores = log_residual(scores, log_q)
            scores += gumbel_tile(seed, position, i, _RECOVERED, start, BLOCK)
            tokens = tl.where(scores > best, offsets, tokens)
            best = tl.maximum(best, scores)
        score, token = best_of(best, tokens)
    else:
        score, token, top = draw_from_span(
            row, begin, end, p_vocab, inverse, p_bound_logit, p_bound_token, item, seed, position, i, _BONUS,
            TRUNCATED, BLOCK,
        )  # fmt: skip
        tl.store(part_top + partial, top)
    tl.store(part_score + partial, score)
    tl.store(part_token + partial, token)
    let_next_start(PDL)
    if ~is_last(counters, request, parts):
        return
    lane = tl.arange(0, PARTS)
    used = lane < parts
    at = request.to(tl.int64) * parts + lane
    best, last = best_of(load_part(part_score + at, used, float("-inf")), load_part(part_token + at, used, NOWHERE))
    if rejected:
        if best == float("-inf"):
            # p = q up to rounding: this program alone draws from p.
            _, last, _ = draw_from_span(
                row, 0, p_vocab, p_vocab, inverse, p_bound_logit, p_bound_token, item, seed, position, i, _RECOVERED,
                TRUNCATED, BLOCK,
            )  # fmt: skip
        tl.store(out_tokens + item, last.to(tl.int64))
    else:
        status, _ = status_of(load_part(part_top + at, used, float("-inf")), 0)
        emit(
            out_tokens, out_emitted, out_accepted, out_status, draft_tokens, stride_draft, request, k,
            i, last, status, K_PAD,
        )  # fmt: skip
    if COUNTED and status == 0:
        add_counts(counts, k, i, count, K_PAD)


def draw_last(
    p: Side,
    q: Side | None,
    sampling: SamplingTensors,
    positions: Tensor,
    out: RejectionOutput,
    verified: Verified,
    counts: Tensor | None,
) -> None:
    """Complete `out` with the recovered or bonus token of every sound random request."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    like, requests = rows.logits, rows.requests
    cut = cut_of(rows.vocab, requests, tile=TILE)
    _draw_kernel[(requests * cut.parts,)](
        *p.tensors, *(q or p).tensors, rows.draft_tokens, rows.num_drafts,
        sampling.temperature, sampling.seed, positions, verified.p_lse, verified.q_lse, verified.weight,
        floats(like, requests, cut.parts), floats(like, requests, cut.parts), int32s(like, requests, cut.parts),
        arrivals(like, requests), *out, counts, *p.strides, *(q or p).strides, rows.stride_draft,
        rows.vocab, q_rows.vocab, cut.parts, cut.steps, rows.width - 1, requests,
        **flags(p, q), WEIGHTED=verified.weight is not None, COUNTED=counts is not None,
        BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=min(WARPS, 4 * cut.warps), maxnreg=MAX_REGISTERS,
        **launch_options(like),
    )  # fmt: skip
