"""The token after the accepted drafts: the recovered or the bonus one, of the one row that a random request ended at.

A program takes some chunks of that row; the last one of a request combines them. Requests go backwards, because the
rows that verification read last are the ones still in L2; forwards after block verification, whose masses
went backwards before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.logit_rows import (
    floats,
    int32s,
    inverse_temperature,
    is_last,
    load_drafts,
    load_part,
    load_tile,
    row_pointer,
)
from specpipe_kernels.sampling.device.philox import chunk_gumbel
from specpipe_kernels.sampling.device.row_spans import span_of
from specpipe_kernels.sampling.device.vocab_chunks import (
    chunk_tiling,
    draw_from_chunk,
    load_log_masses,
    pick,
    store_masses,
)
from specpipe_kernels.sampling.verification.distributions import Distribution, flags
from specpipe_kernels.sampling.verification.emit import add_counts, emit
from specpipe_kernels.sampling.verification.residual import draw_from_residual, store_residual_masses
from specpipe_kernels.sampling.verification.verify import Verified
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

# More would leave too few warps to hide the memory's latency; few rows have few programs, and every wait counts.
MAX_REGISTERS, SINGLE_REGISTERS = 64, 96
_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))
_BONUS = tl.constexpr(int(Purpose.BONUS))


@triton.jit
def _residual_log_masses(masses, chunks, CHUNKS: tl.constexpr):
    lane = tl.arange(0, CHUNKS)
    mass = load_part(masses + lane, lane < chunks, 0.0)
    return tl.where(mass > 0.0, tl.log(mass), float("-inf"))


@triton.jit
def _load_chunk(row, q_row, begin, p_vocab, q_vocab, ONE_HOT: tl.constexpr, BLOCK: tl.constexpr):
    """→ the logits of a chunk of p and q; one-hot proposals have no q."""
    x = load_tile(row, begin + tl.arange(0, BLOCK), p_vocab)
    y = x
    if not ONE_HOT:
        y = load_tile(q_row, begin + tl.arange(0, BLOCK), q_vocab)
    return x, y


@triton.jit(do_not_specialize=["k", "stride_draft", "parts", "per", "requests"])
def _draw_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, q_logits, q_map, q_bound_logit, q_bound_token,
    draft_tokens, num_drafts, temperature, seeds, positions, p_lse, q_lse, weight,
    part_reference, part_token, chunk_mass, counters,
    out_tokens, out_emitted, out_accepted, out_status, counts,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft,
    p_vocab, q_vocab, chunks, parts, per, k, requests,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, K_PAD: tl.constexpr,
    WEIGHTED: tl.constexpr, BONUS: tl.constexpr, COUNTED: tl.constexpr, SINGLE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0) // parts
    if not WEIGHTED:
        request = requests - 1 - request
    part = tl.program_id(0) % parts
    begin, end = span_of(part, per, p_vocab, BLOCK)
    wide = request.to(tl.int64)
    lane = tl.arange(0, K_PAD)
    # Verification did not write these: they may be read while it runs.
    temp = tl.load(temperature + request)
    seed = tl.load(seeds + request)
    position = tl.load(positions + request)
    count, drafts = load_drafts(draft_tokens, stride_draft, num_drafts, request, k, K_PAD)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    status = tl.load(out_status + request)
    i = tl.load(out_accepted + request)
    item = request * (k + 1) + i
    shifts = tl.load(p_lse + wide * (k + 1) + lane, mask=lane <= k, other=0.0)
    q_shifts = tl.load(q_lse + wide * (k + 1) + lane, mask=lane <= k, other=0.0)
    if WEIGHTED:
        shifts -= tl.log(tl.load(weight + wide * (k + 1) + lane, mask=lane <= k, other=1.0))
    if (temp == 0.0) | (status != 0):
        return
    position += i
    rejected = i < count
    if not BONUS and ~rejected:
        if COUNTED and part == 0:
            add_counts(counts, k, i, count, K_PAD)
        return
    purpose = tl.where(rejected, _RECOVERED, _BONUS)
    inverse = inverse_temperature(temp)
    q_item = request * k + i
    row = row_pointer(p_logits, p_map, request, i, p_stride_group, p_stride_row, P_MAP)
    q_row = row_pointer(q_logits, q_map, request, i, q_stride_group, q_stride_row, Q_MAP)
    masses = chunk_mass + wide * chunks
    partial = wide * parts + part
    # Of the residual; a bonus row has no such values.
    ended = (lane == i) & rejected
    p_shift = tl.sum(tl.where(ended, shifts, 0.0))
    q_shift = tl.sum(tl.where(ended, q_shifts, 0.0))
    draft = tl.sum(tl.where(ended, drafts + 1, 0)) - 1
    if rejected:
        if SINGLE:
            x, y = _load_chunk(row, q_row, begin, p_vocab, q_vocab, ONE_HOT, BLOCK)
            mass, token = draw_from_residual(
                x, y, begin, seed, position, i, draft, inverse,
                p_shift, p_bound_logit, p_bound_token, item, q_shift, q_bound_logit, q_bound_token, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(masses + part, mass)
            tl.store(part_token + partial, token)
        else:
            store_residual_masses(
                row, q_row, begin, end, p_vocab, q_vocab, masses, draft, inverse,
                p_shift, p_bound_logit, p_bound_token, item, q_shift, q_bound_logit, q_bound_token, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
    else:
        if SINGLE:
            x = load_tile(row, begin + tl.arange(0, BLOCK), p_vocab)
            mass, reference, _, token = draw_from_chunk(
                x, begin, inverse, p_bound_logit, p_bound_token, item, seed, position, i, _BONUS,
                TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(masses + part, mass)
            tl.store(part_token + partial, token)
        else:
            reference = store_masses(
                row, begin, end, p_vocab, inverse, p_bound_logit, p_bound_token, item, masses, TRUNCATED, BLOCK
            )
        tl.store(part_reference + partial, reference)
    # Before this program knows whether it is the last: its wait for the others is no time for arithmetic.
    noise = chunk_gumbel(seed, position, i, purpose, tl.arange(0, CHUNKS))
    if ~is_last(counters, request, parts):
        return
    names = tl.arange(0, CHUNKS)
    if SINGLE:
        names = load_part(part_token + wide * parts + names, names < parts, 0)
    left = rejected  # whether p - q leaves anything
    if rejected:
        score, last = pick(_residual_log_masses(masses, chunks, CHUNKS), noise, names)
        left = score > float("-inf")
        if ~left:
            # p = q up to rounding: this program alone draws from p.
            store_masses(
                row, 0, p_vocab, p_vocab, inverse, p_bound_logit, p_bound_token, item, masses, TRUNCATED, BLOCK
            )
            tl.debug_barrier()
            _, last = pick(_residual_log_masses(masses, chunks, CHUNKS), noise, tl.arange(0, CHUNKS))
    else:
        status, _, log_masses = load_log_masses(
            chunk_mass, part_reference, request, inverse, chunks, parts, per, CHUNKS
        )  # fmt: skip
        _, last = pick(log_masses, noise, names)
    if not SINGLE or (rejected & ~left):
        begin = last * BLOCK
        if left:
            x, y = _load_chunk(row, q_row, begin, p_vocab, q_vocab, ONE_HOT, BLOCK)
            _, last = draw_from_residual(
                x, y, begin, seed, position, i, draft, inverse,
                p_shift, p_bound_logit, p_bound_token, item, q_shift, q_bound_logit, q_bound_token, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
        else:
            x = load_tile(row, begin + tl.arange(0, BLOCK), p_vocab)
            _, _, _, last = draw_from_chunk(
                x, begin, inverse, p_bound_logit, p_bound_token, item, seed, position, i, purpose,
                TRUNCATED, BLOCK,
            )  # fmt: skip
    if rejected:
        tl.store(out_tokens + item, last.to(tl.int64))
    else:
        emit(
            out_tokens, out_emitted, out_accepted, out_status, drafts, request, k, i, last, status, K_PAD,
        )  # fmt: skip
    if COUNTED and status == 0:
        add_counts(counts, k, i, count, K_PAD)


def draw_last(
    p: Distribution,
    q: Distribution | None,
    sampling: SamplingTensors,
    positions: Tensor,
    out: RejectionOutput,
    verified: Verified,
    counts: Tensor | None,
    *,
    bonus_given: bool,
) -> None:
    """Complete `out` with the recovered or, unless given, the bonus token of every sound random request."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    like, requests = rows.logits, rows.requests
    cut = chunk_tiling(rows.vocab, requests)
    single = cut.per == 1
    _draw_kernel[(requests * cut.parts,)](
        *p.tensors, *(q or p).tensors, rows.draft_tokens, rows.num_drafts,
        sampling.temperature, sampling.seed, positions, verified.p_lse, verified.q_lse, verified.weight,
        floats(like, requests, cut.parts), int32s(like, requests, cut.parts), floats(like, requests, cut.chunks),
        arrivals(like, requests), *out[:4], counts,
        *p.strides, *(q or p).strides, rows.stride_draft,
        rows.vocab, q_rows.vocab, cut.chunks, cut.parts, cut.per, rows.width - 1, requests,
        **flags(p, q), WEIGHTED=verified.weight is not None, BONUS=not bonus_given, COUNTED=counts is not None,
        SINGLE=single, BLOCK=cut.block, CHUNKS=cut.chunks_pad, num_warps=cut.warps,
        maxnreg=SINGLE_REGISTERS if single else MAX_REGISTERS, **launch_options(like),
    )  # fmt: skip
