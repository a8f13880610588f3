"""Verification of `block`: the longest accepted prefix of the drafts (arXiv 2403.10444).

One launch scans the rows and computes the weights of the prefixes p_i. They suffice with one-hot proposals, and for
most other requests; `decide_blocks` completes the rest. Greedy rows accept the drafts that are the largest logit of
their row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import DraftArgs, ScanResults, StreamArgs, VerdictArgs
from specpipe_kernels.sampling.device.logit_rows import is_last
from specpipe_kernels.sampling.device.philox import uniform
from specpipe_kernels.sampling.verification.decide_blocks import block_length
from specpipe_kernels.sampling.verification.distributions import Distribution
from specpipe_kernels.sampling.verification.draft_scan import compare_drafts, launch_scan, open_scan, store_span
from specpipe_kernels.sampling.verification.emit import emit_verified
from specpipe_kernels.types import Purpose

_BLOCK = tl.constexpr(int(Purpose.BLOCK))


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
def _accept_prefix(
    found, results, request, one_hot, u, count, status, k, K_PAD: tl.constexpr, ONE_HOT: tl.constexpr,
    MIXED: tl.constexpr,
):  # fmt: skip
    """Returns the length of the accepted prefix as far as the weights decide it; stores what `decide_blocks` needs."""
    i = tl.arange(0, K_PAD)
    weights = prefix_weights(found.log_p, found.log_q, count, K_PAD)
    tl.store(results.weight + request * (k + 1), 1.0)
    tl.store(results.weight + request * (k + 1) + i + 1, weights, mask=i < count)
    mass = tl.zeros([K_PAD], tl.float32)
    if ONE_HOT | MIXED:
        after = tl.sum(tl.where(i[None, :] == i[:, None] + 1, tl.exp(found.log_p)[None, :], 0.0), 1)
        mass = tl.where(ONE_HOT | one_hot, weights * (1.0 - after), 0.0)
    accepted = block_length(weights, mass, u, count, K_PAD)
    if not ONE_HOT:
        # h_i <= p_i, so S_i matters only where eta_i <= p_i and no longer prefix is accepted for certain.
        open_ = (i + 1 < count) & (i + 1 > accepted) & (u <= weights) & (status == 0) & ~one_hot
        bits = tl.sum(tl.where(open_, (tl.zeros([K_PAD], tl.int64) + 1) << i.to(tl.int64), 0))
        tl.store(results.undecided + request, bits)
    return accepted


@triton.jit(do_not_specialize=["stride_draft", "stride_lse", "p_parts", "q_parts", "steps", "k"])
def _accept_block_kernel(
    p, q, proposals, streams, memory, results, out, stride_draft, stride_lse, p_parts, q_parts, steps, k,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    ONE_HOT: tl.constexpr = q.logits is None
    wait_for_inputs(PDL)
    let_next_start(PDL)
    span, x, drafts, rows, used, expected = open_scan(
        p, q, proposals, streams, memory, stride_draft, stride_lse, p_parts, q_parts, steps, k, K_PAD, BLOCK
    )
    if ~used:
        return
    i = tl.arange(0, K_PAD)
    u = uniform(drafts.seed, drafts.at + i, i, _BLOCK)
    store_span(p, q, memory, span, drafts, x, rows, p_parts, q_parts, steps, k, BLOCK)
    if ~is_last(memory.arrivals, span.request, expected):
        return

    found = compare_drafts(
        p, q, memory, results, span.request, drafts, rows, p_parts, q_parts, k, K_PAD, PARTS
    )  # fmt: skip
    random = drafts.temp > 0.0
    count = drafts.num_drafts
    drafted = i < count
    if random:
        status = tl.max(tl.where(drafted, found.status, 0))
        accepted = _accept_prefix(
            found, results, span.request, drafts.one_hot, u, count, status, k, K_PAD, ONE_HOT, q.row_map is not None
        )  # fmt: skip
    else:
        failed = drafted & ((drafts.tokens != found.best) | (found.status != 0))
        accepted = tl.minimum(tl.min(tl.where(failed, i, K_PAD)), count)
        status = tl.sum(tl.where(i == accepted, found.status, 0))
        if not ONE_HOT:
            tl.store(results.undecided + span.request, tl.zeros([], tl.int64))
    emit_verified(
        out, proposals, span.request, drafts.tokens, count, k, accepted, found.best, status, ~random, K_PAD
    )  # fmt: skip


def accept_blocks(
    p: Distribution, q: Distribution | None, proposals: DraftArgs, streams: StreamArgs, verdict: VerdictArgs
) -> ScanResults:
    """Fills `verdict` like `accept_drafts`, except for the requests that the result's `undecided` selects."""
    return launch_scan(_accept_block_kernel, p, q, proposals, streams, verdict, by_block=True)
