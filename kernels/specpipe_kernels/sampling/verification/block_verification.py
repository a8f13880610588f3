"""Block verification's masses S_i = sum(max(p_i P - Q, 0)), where the decision needs them (arXiv 2403.10444).

A program takes a span of the vocabulary for all positions of a request that are undecided; the last one decides. Many
requests have none, so there are twice as many programs as elsewhere. They go backwards, because the rows that
verification read last are still in L2; the draw then goes forwards.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.logit_rows import (
    PROGRAMS,
    floats,
    inverse_temperature,
    is_last,
    load_drafts,
    load_part,
    row_pointer,
    row_tiling,
)
from specpipe_kernels.sampling.device.philox import uniform
from specpipe_kernels.sampling.device.row_spans import span_of
from specpipe_kernels.sampling.verification.distributions import Distribution, flags
from specpipe_kernels.sampling.verification.emit import emit
from specpipe_kernels.sampling.verification.residual import residual_mass
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

MAX_REGISTERS = 64  # more would leave too few warps to hide the memory's latency
_BLOCK = tl.constexpr(int(Purpose.BLOCK))


@triton.jit
def block_length(p, s, eta, count, K_PAD: tl.constexpr):
    """The longest accepted prefix; entry i of p, s and eta is about the prefix of i + 1 drafts."""
    i = tl.arange(0, K_PAD)
    h = tl.where(p < 1.0, s / (s + 1.0 - p), 1.0)
    h = tl.where(i + 1 == count, p, h)
    return tl.max(tl.where((i < count) & (eta <= h), i + 1, 0))


@triton.jit(do_not_specialize=["k", "stride_draft", "parts", "steps", "requests"])
def _block_mass_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, q_logits, q_map, q_bound_logit, q_bound_token,
    draft_tokens, num_drafts, temperature, seeds, positions, p_lse, q_lse, weight, undecided, part_mass, counters,
    out_tokens, out_emitted, out_accepted, out_status,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft, p_vocab, q_vocab,
    parts, steps, k, requests,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, K_PAD: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    request = requests - 1 - tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    begin, end = span_of(part, steps, p_vocab, BLOCK)
    lane = tl.arange(0, K_PAD)
    # Verification did not write these: they may be read while it runs.
    inverse = inverse_temperature(tl.load(temperature + request))
    count, drafts = load_drafts(draft_tokens, stride_draft, num_drafts, request, k, K_PAD)
    eta = uniform(tl.load(seeds + request), tl.load(positions + request) + lane, lane, _BLOCK)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    items = request * (k + 1) + lane
    bits = tl.load(undecided + request)
    p = tl.load(weight + items + 1, mask=lane < count, other=0.0)
    p_shifts = tl.load(p_lse + items + 1, mask=lane < count, other=0.0) - tl.log(p)
    q_shifts = tl.load(q_lse + items + 1, mask=lane < count, other=0.0)
    if bits == 0:
        return
    for i in range(1, k):
        if ((bits >> (i - 1)) & 1) == 1:
            position = tl.zeros([], tl.int32) + i
            item = request * (k + 1) + i
            row = row_pointer(p_logits, p_map, request, position, p_stride_group, p_stride_row, P_MAP)
            q_row = row_pointer(q_logits, q_map, request, position, q_stride_group, q_stride_row, Q_MAP)
            p_shift = tl.sum(tl.where(lane == i - 1, p_shifts, 0.0))
            q_shift = tl.sum(tl.where(lane == i - 1, q_shifts, 0.0))
            mass = residual_mass(
                row, q_row, begin, end, p_vocab, q_vocab, inverse, p_shift, p_bound_logit, p_bound_token, item,
                q_shift, q_bound_logit, q_bound_token, request * k + i, TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(part_mass + item.to(tl.int64) * parts + part, mass)
    if ~is_last(counters, request, parts):
        return
    other = tl.arange(0, PARTS)
    known = (lane < k) & (((bits >> lane.to(tl.int64)) & 1) == 1)
    at = part_mass + (items + 1).to(tl.int64)[:, None] * parts + other[None, :]
    mass = tl.sum(load_part(at, known[:, None] & (other < parts)[None, :], 0.0), 1)
    accepted = block_length(p, mass, eta, count, K_PAD)
    last = tl.zeros([], tl.int32) - 1
    emit(
        out_tokens, out_emitted, out_accepted, out_status, drafts, request, k,
        accepted, last, tl.zeros([], tl.int32), K_PAD,
    )  # fmt: skip


def decide_blocks(
    p: Distribution,
    q: Distribution,
    sampling: SamplingTensors,
    positions: Tensor,
    out: RejectionOutput,
    *,
    p_lse: Tensor,
    q_lse: Tensor,
    weight: Tensor,
    undecided: Tensor,
) -> None:
    """Finish `out` for the requests that `undecided` names."""
    rows, requests, k = p.rows, p.rows.requests, p.rows.width - 1
    cut = row_tiling(rows.vocab, requests, programs=2 * PROGRAMS)
    _block_mass_kernel[(requests * cut.parts,)](
        *p.tensors, *q.tensors, rows.draft_tokens, rows.num_drafts, sampling.temperature, sampling.seed, positions,
        p_lse, q_lse, weight, undecided, floats(rows.logits, requests, k + 1, cut.parts),
        arrivals(rows.logits, requests),
        *out[:4], *p.strides, *q.strides,
        rows.stride_draft, rows.vocab, q.rows.vocab, cut.parts, cut.steps, k, requests,
        **flags(p, q), BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, maxnreg=MAX_REGISTERS,
        **launch_options(rows.logits),
    )  # fmt: skip
