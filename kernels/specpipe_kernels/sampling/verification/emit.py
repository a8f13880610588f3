"""Device functions that store the results of a request: tokens, counts, status, and the counters of all rounds.

Shapes: R requests, K drafts at most, lanes i = 0 .. K_PAD - 1 of one request.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def emit(out, drafts, request, k, accepted, last, status, K_PAD: tl.constexpr):
    """Stores the accepted of `drafts` [K_PAD], `last` (-1 if not drawn yet), then -1; no token for invalid rows.

    out: a `VerdictArgs`.
    """
    i = tl.arange(0, K_PAD)
    valid = (status == 0).to(tl.int32)
    token = tl.where(i < accepted, drafts, tl.where(i == accepted, last.to(tl.int64), -1))
    tl.store(out.tokens + request.to(tl.int64) * (k + 1) + i, tl.where(status == 0, token, -1), mask=i <= k)
    tl.store(out.emitted + request, (accepted + 1) * valid)
    tl.store(out.accepted + request, accepted * valid)
    tl.store(out.status + request, status)


@triton.jit
def emit_verified(
    out, proposals, request, drafts, count, k, accepted, best, status, complete, K_PAD: tl.constexpr
):  # fmt: skip
    """Stores a scan's result: accepted drafts, then `best` [K_PAD] of that row, or -1 where its token is drawn later.

    complete: the request's round ends with this launch, so that it is counted.
    """
    i = tl.arange(0, K_PAD)
    last = tl.sum(tl.where(i == accepted, best, 0))
    if proposals.bonus_tokens is not None:
        last = tl.where(accepted == count, tl.load(proposals.bonus_tokens + request).to(tl.int32), last)
    emit(out, drafts, request, k, accepted, last, status, K_PAD)
    if out.counts is not None:
        finished = complete & (status == 0)
        if finished:
            add_counts(out.counts, k, accepted, count, K_PAD)


@triton.jit
def add_counts(counts, k, accepted, drafts, K_PAD: tl.constexpr):
    """Adds a round of a valid request to counts [4, K+1]: drafts reached, accepted, recovered, bonus, by position."""
    i = tl.arange(0, K_PAD)
    one = tl.zeros([K_PAD], tl.int64) + 1
    tl.atomic_add(counts + i, one, mask=(i <= accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + (k + 1) + i, one, mask=i < accepted, sem="relaxed")
    tl.atomic_add(counts + 2 * (k + 1) + i, one, mask=(i == accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + 3 * (k + 1) + i, one, mask=(i == accepted) & (i == drafts), sem="relaxed")
