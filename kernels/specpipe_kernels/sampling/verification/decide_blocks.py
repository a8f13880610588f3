"""Masses of block verification S_i = sum(max(p_i P - Q, 0)), where the decision needs them (arXiv 2403.10444).

A program scans a span of the vocabulary for all undecided positions of a request; the last one decides. Many requests
have none, so there are twice as many programs as in other kernels. Requests are processed in reverse order, because the
rows that verification read last are still in L2; the draw then goes forwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import DraftArgs, ScanResults, StreamArgs, VerdictArgs
from specpipe_kernels.sampling.device.logit_rows import (
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
from specpipe_kernels.sampling.verification.distributions import Distribution, log_prob_scale
from specpipe_kernels.sampling.verification.emit import emit
from specpipe_kernels.sampling.verification.residual import residual_mass
from specpipe_kernels.types import Purpose

MAX_REGISTERS = 64  # more would leave too few warps to hide memory latency
_BLOCK = tl.constexpr(int(Purpose.BLOCK))


@triton.jit
def block_length(p, s, eta, count, K_PAD: tl.constexpr):
    """Returns the longest accepted prefix; entry i of p, s and eta [K_PAD] belongs to the prefix of i + 1 drafts."""
    i = tl.arange(0, K_PAD)
    h = tl.where(p < 1.0, s / (s + 1.0 - p), 1.0)
    h = tl.where(i + 1 == count, p, h)
    return tl.max(tl.where((i < count) & (eta <= h), i + 1, 0))


@triton.jit(do_not_specialize=["k", "stride_draft", "parts", "steps", "requests"])
def _block_mass_kernel(
    p, q, proposals, streams, results, part_mass, counters, out, stride_draft, parts, steps, k, requests,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    TRUNCATED: tl.constexpr = p.bounds.logit is not None
    request = requests - 1 - tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    begin, end = span_of(part, steps, p.vocab, BLOCK)
    lane = tl.arange(0, K_PAD)
    # Loaded before the wait: verification does not write these.
    inverse = inverse_temperature(tl.load(streams.temperature + request))
    count, drafts = load_drafts(proposals.tokens, stride_draft, proposals.counts, request, k, K_PAD)
    eta = uniform(tl.load(streams.seeds + request), tl.load(streams.positions + request) + lane, lane, _BLOCK)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    items = request * (k + 1) + lane
    bits = tl.load(results.undecided + request)
    weights = tl.load(results.weight + items + 1, mask=lane < count, other=0.0)
    p_reference = tl.load(results.p_reference + items + 1, mask=lane < count, other=0.0)
    p_log_mass = tl.load(results.p_log_mass + items + 1, mask=lane < count, other=0.0) - tl.log(weights)
    q_reference = tl.load(results.q_reference + items + 1, mask=lane < count, other=0.0)
    q_log_mass = tl.load(results.q_log_mass + items + 1, mask=lane < count, other=0.0)
    if bits == 0:
        return
    for i in range(1, k):
        if ((bits >> (i - 1)) & 1) == 1:
            position = tl.zeros([], tl.int32) + i
            item = request * (k + 1) + i
            row = row_pointer(p, request, position)
            q_row = row_pointer(q, request, position)
            p_scale = log_prob_scale(p_reference, p_log_mass, lane == i - 1, inverse)
            q_scale = log_prob_scale(q_reference, q_log_mass, lane == i - 1, inverse)
            mass = residual_mass(
                row, q_row, begin, end, p.vocab, q.vocab, p_scale, p.bounds, item,
                q_scale, q.bounds, request * k + i, TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(part_mass + item.to(tl.int64) * parts + part, mass)
    if ~is_last(counters, request, parts):
        return
    other = tl.arange(0, PARTS)
    known = (lane < k) & (((bits >> lane.to(tl.int64)) & 1) == 1)
    at = part_mass + (items + 1).to(tl.int64)[:, None] * parts + other[None, :]
    mass = tl.sum(load_part(at, known[:, None] & (other < parts)[None, :], 0.0), 1)
    accepted = block_length(weights, mass, eta, count, K_PAD)
    last = tl.zeros([], tl.int32) - 1
    emit(out, drafts, request, k, accepted, last, tl.zeros([], tl.int32), K_PAD)


def decide_blocks(
    p: Distribution,
    q: Distribution,
    proposals: DraftArgs,
    streams: StreamArgs,
    verdict: VerdictArgs,
    scanned: ScanResults,
) -> None:
    """Completes `verdict` for the requests that `scanned.undecided` selects."""
    rows, requests, k = p.rows, p.rows.requests, p.rows.width - 1
    cut = row_tiling(rows.logits.device, rows.vocab, requests, waves=2)
    _block_mass_kernel[(requests * cut.parts,)](
        p.args, q.args, DraftArgs(*proposals[:2]), streams, scanned,
        floats(rows.logits, requests, k + 1, cut.parts), arrivals(rows.logits, requests), verdict._replace(counts=None),
        rows.stride_draft, cut.parts, cut.steps, k, requests,
        K_PAD=rows.k_pad, BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, maxnreg=MAX_REGISTERS,
        **launch_options(rows.logits),
    )  # fmt: skip
