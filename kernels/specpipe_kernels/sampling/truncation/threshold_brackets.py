"""Device functions that bracket the cutoff of top-k or top-p between two of several thresholds.

A token's weight is 1 for top-k, and its mass relative to the largest logit for top-p.
"""

from __future__ import annotations

import triton
import triton.language as tl

BINS = tl.constexpr(8)
_MAX_REACH = tl.constexpr(1024.0)  # largest distance of a threshold of top-k from the largest logit


@triton.jit
def load_extent(tops, bottoms, item, parts, PARTS: tl.constexpr):
    """Returns the largest and the smallest finite logit of a row."""
    part = tl.arange(0, PARTS)
    at = item.to(tl.int64) * parts + part
    top = tl.max(tl.load(tops + at, mask=part < parts, other=float("-inf")))
    return top, tl.min(tl.load(bottoms + at, mask=part < parts, other=float("inf")))


@triton.jit
def first_thresholds(top, bottom, k, p, temp, vocab):
    """Returns [BINS] thresholds, ascending from -inf: for top-k denser near the largest logit, for top-p equidistant.

    Tokens below the lowest finite threshold of top-p have a mass of at most 1 - p together; the largest logit has 1.
    """
    bin_ = tl.arange(0, BINS)
    reach = tl.where(k > 0, _MAX_REACH, temp * tl.log(vocab / tl.maximum(1.0 - p, 1e-8)))
    spread = tl.where(k > 0, tl.exp2(1.0 - bin_), (BINS - bin_) / (BINS - 1.0))
    return tl.where(bin_ == 0, float("-inf"), top - tl.minimum(top - bottom, reach) * spread)


@triton.jit
def further_thresholds(low, high, top):
    """Returns [BINS] equidistant thresholds of [low, high); all equal to low if it is -inf."""
    width = tl.where(low > float("-inf"), tl.minimum(high, top) - low, 0.0)
    return low + width * (tl.arange(0, BINS) / (BINS + 0.0))


@triton.jit
def bracket(weights, thresholds, item, parts, k, p, low, high, above, target, FIRST: tl.constexpr, PARTS: tl.constexpr):
    """Narrows low <= cutoff < high; returns low, high, the weight from `high` on, the weight to reach.

    The latter is NaN for invalid rows. weights [items, parts, BINS]: weight of a part at or above each threshold.
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
    """Returns the bracket between the first thresholds; see `bracket`."""
    infinity = tl.full([], float("inf"), tl.float32)
    zero = tl.zeros([], tl.float32)
    return bracket(weights, thresholds, item, parts, k, p, -infinity, infinity, zero, zero, True, PARTS)
