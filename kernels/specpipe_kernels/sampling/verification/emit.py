"""What a request's verification writes: accepted drafts, counts, status, and the counters of all rounds.

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
    """The accepted of `drafts` [K_PAD], `last` (-1 if it is still to be drawn), then -1; nothing for an unsound row."""
    i = tl.arange(0, K_PAD)
    sound = (status == 0).to(tl.int32)
    token = tl.where(i < accepted, drafts, tl.where(i == accepted, last.to(tl.int64), -1))
    tl.store(out_tokens + request.to(tl.int64) * (k + 1) + i, tl.where(status == 0, token, -1), mask=i <= k)
    tl.store(out_emitted + request, (accepted + 1) * sound)
    tl.store(out_accepted + request, accepted * sound)
    tl.store(out_status + request, status)


@triton.jit
def add_counts(counts, k, accepted, drafts, K_PAD: tl.constexpr):
    """Add a round of a sound request to counts [4, K+1]: positions reached, accepted, recovered, bonus."""
    i = tl.arange(0, K_PAD)
    one = tl.zeros([K_PAD], tl.int64) + 1
    tl.atomic_add(counts + i, one, mask=(i <= accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + (k + 1) + i, one, mask=i < accepted, sem="relaxed")
    tl.atomic_add(counts + 2 * (k + 1) + i, one, mask=(i == accepted) & (i < drafts), sem="relaxed")
    tl.atomic_add(counts + 3 * (k + 1) + i, one, mask=(i == accepted) & (i == drafts), sem="relaxed")
