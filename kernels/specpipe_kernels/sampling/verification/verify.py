"""How many drafts of a request are accepted: one pass over its rows of logits, in one launch.

A program takes a span of the vocabulary of one row; the last program of a request combines them, decides, and writes
the round's output. Drafts behind a refused one need no scan: a launch may cover positions `first` .. `first` + `width`
- 1 of the requests that accepted everything before. A random row's bonus position is not scanned: its draw reads it.
Shapes: R requests, K drafts at most; statistics of p per item r * (K+1) + i, of q per item r * K + i.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.sampling.device.logit_rows import (
    PROGRAMS,
    floats,
    int32s,
    int64s,
    inverse_temperature,
    is_last,
    load_drafts,
    load_tile,
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
from specpipe_kernels.sampling.verification.distributions import Distribution, draft_log_probs, draft_logits, flags
from specpipe_kernels.sampling.verification.emit import add_counts, emit
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

# How a random row is verified. A greedy one always matches its largest logits, but under SYNTHETIC.
GREEDY, INVARIANT, STANDARD, BLOCK_WISE, SYNTHETIC = (tl.constexpr(i) for i in range(5))
METHOD_CODES = {"invariant": INVARIANT, "standard": STANDARD, "block": BLOCK_WISE, "synthetic": SYNTHETIC}
# More would leave too few warps to hide the memory's latency; with few programs every wait counts, and room is left.
MAX_REGISTERS, FEW_REGISTERS = 64, 128
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
_BLOCK = tl.constexpr(int(Purpose.BLOCK))
_INVARIANT = tl.constexpr(int(Purpose.INVARIANT))


class Verified(NamedTuple):
    """What the draws after it need; undefined where nothing was scanned."""

    p_lse: Tensor
    """[R, K+1]"""
    q_lse: Tensor
    """[R, K+1]; 0 with one-hot proposals."""
    weight: Tensor | None
    """[R, K+1]: p_i of block verification."""
    undecided: Tensor | None
    """[R] int64: bit i - 1 is set if block verification needs S_i; 0 where it is decided."""


@triton.jit
def prefix_weights(log_p, log_q, count, K_PAD: tl.constexpr):
    """[K_PAD]: entry i is p_(i+1) = min(p_i P(x_(i+1)) / Q(x_(i+1)), 1), p_0 = 1, of the prefix of i + 1 drafts."""
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
    row, x, vocab, part, steps, temp, seed, at, bound_logit, bound_token, item, partial,
    part_value, part_reference, part_token, METHOD: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store statistics of a span whose first tile is x: by kind of row its largest logit, best draw, or mass."""
    begin, end = span_of(part, steps, vocab, BLOCK)
    inverse = inverse_temperature(temp)
    if (METHOD == GREEDY) | (temp == 0.0):
        value, token = largest_of_span(row, x, begin, end, vocab, BLOCK)
        tl.store(part_token + partial, token)
    elif METHOD == INVARIANT:
        value, token = draw_from_span(
            row, x, begin, end, vocab, inverse, bound_logit, bound_token, item, seed, at, 0, _INVARIANT,
            TRUNCATED, BLOCK,
        )  # fmt: skip
        tl.store(part_token + partial, token)
    else:
        value, reference = mass_of_span(
            row, x, begin, end, vocab, inverse, bound_logit, bound_token, item, TRUNCATED, BLOCK
        )
        tl.store(part_reference + partial, reference)
    tl.store(part_value + partial, value)


@triton.jit
def _synthetic_rate(rates, i, k):
    """Probability that draft i is accepted, given that those before it are."""
    rate = tl.load(rates + i, mask=i < k, other=0.0)
    previous = tl.load(rates + i - 1, mask=(i > 0) & (i < k), other=1.0)
    return tl.where(previous > 0.0, rate / previous, 0.0)


@triton.jit(do_not_specialize=["k", "stride_draft", "stride_lse", "first", "width", "p_parts", "q_parts", "steps"])
def _verify_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, q_logits, q_map, q_bound_logit, q_bound_token, draft_lse,
    draft_tokens, num_drafts, temperature, seeds, positions, bonus_tokens, rates,
    part_value, part_reference, part_token, q_part_value, q_part_reference, counters,
    p_lse, q_lse, weight, undecided, out_tokens, out_emitted, out_accepted, out_status, counts,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft, stride_lse,
    p_vocab, q_vocab, p_parts, q_parts, steps, k, first, width,
    METHOD: tl.constexpr, P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr,
    K_PAD: tl.constexpr, SCAN_Q: tl.constexpr, LAZY: tl.constexpr, COUNTED: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
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
    # What does not depend on each other is loaded before anything waits: the first tile shares its latency.
    temp = tl.load(temperature + request)
    seed = tl.load(seeds + request)
    at = tl.load(positions + request)
    row = row_pointer(p_logits, p_map, request, position, p_stride_group, p_stride_row, P_MAP)
    there = ~is_q & (part < p_parts)
    if P_MAP:
        there = there & (position < tl.load(p_map + request + 1) - tl.load(p_map + request))
    if LAZY:
        ended = (tl.load(out_accepted + request) != first) | (tl.load(out_status + request) != 0)
        there = there & ((first == 0) | ~ended)
    if bonus_tokens is not None:
        there = there & (position < k)
    elif (METHOD == STANDARD) | (METHOD == BLOCK_WISE) | (METHOD == SYNTHETIC):  # noqa: SIM102  # decided when compiled
        if position == k:
            there = there & ~(temp > 0.0)
    x = load_tile(row, part * steps * BLOCK + tl.arange(0, BLOCK), tl.where(there, p_vocab, 0))
    i = tl.arange(0, K_PAD)
    count, drafts = load_drafts(draft_tokens, stride_draft, num_drafts, request, k, K_PAD)
    random = temp > 0.0
    if METHOD == GREEDY:
        random = temp != temp
    matched = ~random
    if METHOD == INVARIANT:
        matched = temp == temp
    end = tl.minimum(first + width, count)  # of the drafts that this launch verifies
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
        x_p = draft_logits(
            p_logits, p_map, p_stride_group, p_stride_row, p_vocab, request, i, drafts, verified, P_MAP
        )  # fmt: skip
        if not ONE_HOT:
            x_q = draft_logits(
                q_logits, q_map, q_stride_group, q_stride_row, q_vocab, request, i, drafts, verified, Q_MAP
            )  # fmt: skip
            if not SCAN_Q:
                group = request.to(tl.int64)
                if Q_MAP:
                    group = tl.load(q_map + request).to(tl.int64)
                lse_q = tl.load(draft_lse + group * stride_lse + i, mask=verified, other=0.0)
    idle = False
    if LAZY:
        idle = (first > 0) & (ended | (rows == 0))
    # A request without rows has one program, which decides.
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
        q_row = row_pointer(q_logits, q_map, request, position, q_stride_group, q_stride_row, Q_MAP)
        y = load_tile(q_row, part * steps * BLOCK + tl.arange(0, BLOCK), q_vocab)
        _scan_span(
            q_row, y, q_vocab, part, steps, temp, seed, at + position, q_bound_logit, q_bound_token, q_item,
            q_item.to(tl.int64) * q_parts + part, q_part_value, q_part_reference, part_token,
            METHOD, TRUNCATED, BLOCK,
        )  # fmt: skip
    if ~is_q:
        _scan_span(
            row, x, tl.where(rows > 0, p_vocab, 0), part, steps, temp, seed, at + position,
            p_bound_logit, p_bound_token, item, item.to(tl.int64) * p_parts + part,
            part_value, part_reference, part_token, METHOD, TRUNCATED, BLOCK,
        )  # fmt: skip
    if ~is_last(counters, request, expected):
        return

    here = (i >= first) & (i < first + rows)
    items = request * (k + 1) + i
    inverse = inverse_temperature(temp)
    lse = tl.zeros([K_PAD], tl.float32)
    best = tl.full([K_PAD], -1, tl.int32)
    if matched:
        status, best = best_tokens(part_value, part_token, items, p_parts, here, PARTS)
    else:
        status, lse = row_lse(part_value, part_reference, items, inverse, p_parts, here, PARTS)
    status = tl.where(here, status, 0)
    accept = drafts == best
    if METHOD == SYNTHETIC:
        accept = u < _synthetic_rate(rates, i, k)
    if (METHOD == STANDARD) | (METHOD == BLOCK_WISE) | (METHOD == SYNTHETIC):
        tl.store(p_lse + items, lse, mask=verified)
        log_p = draft_log_probs(x_p, drafts, p_bound_logit, p_bound_token, items, lse, inverse, TRUNCATED)
        log_q = tl.zeros([K_PAD], tl.float32)
        if not ONE_HOT:
            q_items = request * k + i
            if SCAN_Q:
                q_status, lse_q = row_lse(q_part_value, q_part_reference, q_items, inverse, q_parts, verified, PARTS)
            else:
                q_status = tl.where(lse_q == float("-inf"), 2, tl.where(lse_q < float("inf"), 0, 1))
            tl.store(q_lse + items, lse_q, mask=verified)
            status = tl.where(verified & (status == 0), q_status, status)
            log_q = draft_log_probs(x_q, drafts, q_bound_logit, q_bound_token, q_items, lse_q, inverse, TRUNCATED)
        if METHOD == STANDARD:
            q = tl.exp(log_q)
            accept = tl.where(random, (u * q < tl.exp(log_p)) & (q > 0.0), accept)
    ok = accept & (status == 0)
    accepted = tl.minimum(tl.min(tl.where(drafted & ~ok, i, K_PAD)), end)
    final_status = tl.sum(tl.where(i == accepted, status, 0))
    if METHOD == BLOCK_WISE:
        if random:
            final_status = tl.max(tl.where(drafted, status, 0))
            weights = prefix_weights(log_p, log_q, count, K_PAD)
            tl.store(weight + request * (k + 1), 1.0)
            tl.store(weight + items + 1, weights, mask=drafted)
            mass = tl.zeros([K_PAD], tl.float32)
            if ONE_HOT:
                after = tl.sum(tl.where(i[None, :] == i[:, None] + 1, tl.exp(log_p)[None, :], 0.0), 1)
                mass = weights * (1.0 - after)
            accepted = block_length(weights, mass, u, count, K_PAD)
            if not ONE_HOT:
                # h_i <= p_i, so S_i matters only where eta_i <= p_i and no longer prefix is sure.
                open_ = (i + 1 < count) & (i + 1 > accepted) & (u <= weights) & (final_status == 0)
                bits = tl.sum(tl.where(open_, (tl.zeros([K_PAD], tl.int64) + 1) << i.to(tl.int64), 0))
                tl.store(undecided + request, bits)
        elif not ONE_HOT:
            tl.store(undecided + request, tl.zeros([], tl.int64))
    last = tl.sum(tl.where(i == accepted, best, 0))
    last = tl.where(matched, last, -1)
    if bonus_tokens is not None:
        last = tl.where(accepted == count, tl.load(bonus_tokens + request).to(tl.int32), last)
    emit(
        out_tokens, out_emitted, out_accepted, out_status, drafts, request, k, accepted, last, final_status, K_PAD,
    )  # fmt: skip
    if COUNTED:
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
) -> Verified:
    """Fill `out`; last tokens of random rows stay -1. stages: (first position, how many) of each launch."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    like, requests, k = rows.logits, rows.requests, rows.width - 1
    scan_q = q is not None and draft_lse is None
    # 32 bytes a thread; of noise the four entries of one Philox call, so that threads exchange nothing.
    lanes = 4 if method.value == INVARIANT.value else 32 // like.element_size()
    cut = row_tiling(max(rows.vocab, q_rows.vocab), requests * stages[0][1] * (2 if scan_q else 1), lanes=lanes)
    p_parts, q_parts = cdiv(rows.vocab, cut.steps * cut.tile), cdiv(q_rows.vocab, cut.steps * cut.tile)
    values = [floats(like, requests, k + 1, p_parts) for _ in range(2)]
    q_values = [floats(like, requests, k, q_parts) for _ in range(2)] if scan_q else [None] * 2
    by_block = method.value == BLOCK_WISE.value
    done = Verified(
        floats(like, requests, k + 1),
        floats(like, requests, k + 1),
        floats(like, requests, k + 1) if by_block else None,
        int64s(like, requests) if by_block else None,
    )
    programs = requests * (2 * cut.parts if scan_q else p_parts)
    few = programs * rows.width <= PROGRAMS // 2
    for first, width in stages:
        _verify_kernel[(programs * width,)](
            *p.tensors, *(q or p).tensors, draft_lse, rows.draft_tokens, rows.num_drafts,
            sampling.temperature, sampling.seed, positions, bonus_tokens, rates,
            *values, int32s(like, requests, k + 1, p_parts), *q_values, arrivals(like, requests),
            *done, *out[:4], counts,
            *p.strides, *(q or p).strides, rows.stride_draft, 0 if draft_lse is None else draft_lse.stride(0),
            rows.vocab, q_rows.vocab, p_parts, q_parts, cut.steps, k, first, width,
            **flags(p, q), METHOD=method.value, SCAN_Q=scan_q, LAZY=len(stages) > 1, COUNTED=counts is not None,
            BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, maxnreg=FEW_REGISTERS if few else MAX_REGISTERS,
            **launch_options(like),
        )  # fmt: skip
    return done
