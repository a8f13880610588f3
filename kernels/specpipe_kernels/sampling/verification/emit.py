"""Device functions that store the results of a request: tokens, counts, status, and the counters of all rounds.

Shapes: R requests, K drafts at most, lanes i = 0 .. K_PAD - 1 of one request.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def emit(
    out_tokens, out_emitted, out_accepted, out_status, drafts, request, k, accepted, last, status,
    K_PAD: tl.constexpr,
):  # fmt: skip
    """Stores the accepted of `drafts` [K_PAD], `last` (-1 if not drawn yet), then -1; no token for invalid rows."""
    i = tl.arange(0, K_PAD)
    valid = (status == 0).to(tl.int32)
    token = tl.where(i < accepted, drafts, tl.where(i == accepted, last.to(tl.int64), -1))
    tl.store(out_tokens + request.to(tl.int64) * (k + 1) + i, tl.where(status == 0, token, -1), mask=i <= k)
    tl.store(out_emitted + request, (accepted + 1) * valid)
    tl.store(out_accepted + request, accepted * valid)
    tl.store(out_status + request, status)


@triton.jit
def add_counts(counts, k, accepted, drafts, K_PAD: tl.constexpr):
    """Adds a round of a valid request to counts [4, K+1]: drafts reached, accepted, recovered, bonus, by position."""
    i = tl.arange(0, K_PAD)
    one = tl.zeros([K_PAD], tl.int64) + 1
    tl.atomic_add(counts + i, one, mask=(i <= accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + (k + 1) + i, one, mask=i < accepted, sem="relaxed")
    tl.atomic_add(counts + 2 * (k + 1) + i, one, mask=(i == accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + 3 * (k + 1) + i, one, mask=(i == accepted) & (i == drafts), sem="relaxed")
