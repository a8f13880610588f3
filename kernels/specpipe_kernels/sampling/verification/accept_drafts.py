"""Verification of `standard`, which accepts each draft with probability min(1, p / q), and of `synthetic`.

One launch scans the rows and accepts; the token after the accepted drafts of a random row is drawn by another launch
(`draw_final_token`). Greedy rows accept the drafts that are the largest logit of their row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import DraftArgs, ScanResults, StreamArgs, VerdictArgs
from specpipe_kernels.sampling.device.logit_rows import is_last
from specpipe_kernels.sampling.device.philox import uniform
from specpipe_kernels.sampling.verification.distributions import Distribution
from specpipe_kernels.sampling.verification.draft_scan import compare_drafts, launch_scan, open_scan, store_span
from specpipe_kernels.sampling.verification.emit import emit_verified
from specpipe_kernels.types import Purpose

_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))


@triton.jit
def _synthetic_rate(rates, i, k):
    """Returns the probability that draft i is accepted, given that all earlier ones are."""
    rate = tl.load(rates + i, mask=i < k, other=0.0)
    previous = tl.load(rates + i - 1, mask=(i > 0) & (i < k), other=1.0)
    return tl.where(previous > 0.0, rate / previous, 0.0)


@triton.jit(do_not_specialize=["stride_draft", "stride_lse", "p_parts", "q_parts", "steps", "k"])
def _accept_kernel(
    p, q, proposals, streams, memory, results, out, stride_draft, stride_lse, p_parts, q_parts, steps, k,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    let_next_start(PDL)
    span, x, drafts, rows, used, expected = open_scan(
        p, q, proposals, streams, memory, stride_draft, stride_lse, p_parts, q_parts, steps, k, K_PAD, BLOCK
    )
    if ~used:
        return
    i = tl.arange(0, K_PAD)
    u = uniform(drafts.seed, drafts.at + i, i, _ACCEPT)
    store_span(p, q, memory, span, drafts, x, rows, p_parts, q_parts, steps, k, BLOCK)
    if ~is_last(memory.arrivals, span.request, expected):
        return

    found = compare_drafts(
        p, q, memory, results, span.request, drafts, rows, p_parts, q_parts, k, K_PAD, PARTS
    )  # fmt: skip
    random = drafts.temp > 0.0
    accept = drafts.tokens == found.best
    if proposals.rates is not None:
        accept = u < _synthetic_rate(proposals.rates, i, k)
    else:
        q_draft = tl.exp(found.log_q)
        accept = tl.where(random, (u * q_draft < tl.exp(found.log_p)) & (q_draft > 0.0), accept)
    failed = (i < drafts.num_drafts) & ~(accept & (found.status == 0))
    accepted = tl.minimum(tl.min(tl.where(failed, i, K_PAD)), drafts.num_drafts)
    status = tl.sum(tl.where(i == accepted, found.status, 0))
    emit_verified(
        out, proposals, span.request, drafts.tokens, drafts.num_drafts, k, accepted, found.best, status, ~random, K_PAD
    )  # fmt: skip


def accept_drafts(
    p: Distribution, q: Distribution | None, proposals: DraftArgs, streams: StreamArgs, verdict: VerdictArgs
) -> ScanResults:
    """Fills `verdict`, except the final tokens of random rows, which stay -1; returns the statistics for their draw."""
    return launch_scan(_accept_kernel, p, q, proposals, streams, verdict, by_block=False)
