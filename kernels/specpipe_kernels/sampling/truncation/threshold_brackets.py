"""Device functions that bracket where top-k or top-p cuts a row: thresholds, and between which two of them it lies.

Weight is 1 a token for top-k, and the mass over that of the largest logit for top-p.
"""

from __future__ import annotations

import triton
import triton.language as tl

BINS = tl.constexpr(8)
_FARTHEST = tl.constexpr(1024.0)  # from the largest logit to the lowest threshold of top-k


@triton.jit
def load_extent(tops, bottoms, item, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    at = item.to(tl.int64) * parts + part
    top = tl.max(tl.load(tops + at, mask=part < parts, other=float("-inf")))
    return top, tl.min(tl.load(bottoms + at, mask=part < parts, other=float("inf")))


@triton.jit
def first_thresholds(top, bottom, k, p, temp, vocab):
    """[BINS], ascending from -inf. Those of top-k come close to the largest logit; those of top-p are evenly spread.

    Tokens below the lowest one of top-p have a mass of at most 1 - p together, and the largest logit has 1.
    """
    bin_ = tl.arange(0, BINS)
    reach = tl.where(k > 0, _FARTHEST, temp * tl.log(vocab / tl.maximum(1.0 - p, 1e-8)))
    spread = tl.where(k > 0, tl.exp2(1.0 - bin_), (BINS - bin_) / (BINS - 1.0))
    return tl.where(bin_ == 0, float("-inf"), top - tl.minimum(top - bottom, reach) * spread)


@triton.jit
def further_thresholds(low, high, top):
    """[BINS] of [low, high), evenly spread; from -inf on there is nothing to spread."""
    width = tl.where(low > float("-inf"), tl.minimum(high, top) - low, 0.0)
    return low + width * (tl.arange(0, BINS) / (BINS + 0.0))


@triton.jit
def bracket(weights, thresholds, item, parts, k, p, low, high, above, target, FIRST: tl.constexpr, PARTS: tl.constexpr):
    """Narrow low <= cut < high: → that, the weight from `high` on, the weight to reach (NaN for unsound rows).

    weights [items, parts, BINS]: of a part, at or above each threshold.
    """
    part = tl.arange(0, PARTS)
    bin_ = tl.arange(0, BINS)
    at = weights + (item.to(tl.int64) * parts + part[:, None]) * BINS + bin_[None, :]
    reached = tl.sum(tl.load(at, mask=(part < parts)[:, None], other=0.0), 0)
    if FIRST:
        target = tl.where(k > 0, k.to(tl.float32), p * tl.max(reached))
    found = tl.max(tl.where(reached >= target, bin_, -1))
    inside = (found >= 0) & (found < BINS - 1)
    low = tl.where(found >= 0, tl.sum(tl.where(bin_ == found, thresholds, 0.0)), low)
    high = tl.where(inside, tl.sum(tl.where(bin_ == found + 1, thresholds, 0.0)), high)
    above = tl.where(inside, tl.sum(tl.where(bin_ == found + 1, reached, 0.0)), above)
    return low, high, above, target


@triton.jit
def first_bracket(weights, thresholds, item, parts, k, p, PARTS: tl.constexpr):
    infinity = tl.full([], float("inf"), tl.float32)
    zero = tl.zeros([], tl.float32)
    return bracket(weights, thresholds, item, parts, k, p, -infinity, infinity, zero, zero, True, PARTS)
