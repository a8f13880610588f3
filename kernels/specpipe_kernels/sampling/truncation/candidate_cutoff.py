"""Device functions that find the cutoff of top-k and top-p: the largest logit from which on the weight suffices.

A token's weight is 1 for top-k, and its mass relative to the largest logit for top-p. The search goes over candidates:
a few entries of the row, in the order of their tokens, that contain the cutoff. Where registers cannot hold them all,
it goes over the row itself. Floats are mapped to unsigned keys of the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import fast_exp
from specpipe_kernels.sampling.device.logit_rows import NOWHERE, load_part, load_tile

_SIGN = tl.constexpr(0x80000000)
_ONES = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _keys(x, UNUSED: tl.constexpr):
    """Returns unsigned integers in the order of x; -0.0 equals 0.0. The lowest UNUSED bits of x are always 0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN, bits ^ _ONES, bits | _SIGN) >> UNUSED


@triton.jit
def _logit_of(key, UNUSED: tl.constexpr):
    """Returns the float of a key; -inf for keys below all floats."""
    full = (key << UNUSED).to(tl.uint32)
    low = tl.full([], (1 << UNUSED) - 1, tl.uint32)
    bits = tl.where(full >= _SIGN, full ^ _SIGN, (full | low) ^ _ONES).to(tl.uint32)
    x = bits.to(tl.float32, bitcast=True)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def lowest_from(top, gap):
    """Returns the lowest float x with x - top >= gap, which is negative: top + gap, which may be rounded down."""
    x = top + gap
    return tl.where(x - top < gap, _logit_of(_keys(x, 0) + 1, 0), x)


@triton.jit
def weight_of(x, token, vocab, top, inverse, kept_logit, kept_token, MASS: tl.constexpr):
    """Returns the weights of tokens that an earlier filter kept; its bounds (-inf, NOWHERE) keep all."""
    kept = (x > kept_logit) | ((x == kept_logit) & (token <= kept_token))
    weight = 1.0
    if MASS:
        weight = fast_exp((x - top) * inverse)
    return tl.where(kept & (token < vocab), weight, 0.0)


@triton.jit
def weight_from(
    logit, xs, weights, listed, row, vocab, top, inverse, kept_logit, kept_token,
    MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the weight of logits of at least `logit`, among candidates or, if not all are listed, in the row."""
    if listed:
        reached = tl.sum(tl.where(xs >= logit, weights, 0.0))
    else:
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = load_tile(row, token, vocab)
            weight = weight_of(x, token, vocab, top, inverse, kept_logit, kept_token, MASS)
            total += tl.where(x >= logit, weight, 0.0)
        reached = tl.sum(total)
    return reached


@triton.jit
def _nth(
    nth, logit, xs, tokens, listed, row, vocab, kept_logit, kept_token, BLOCK: tl.constexpr
):  # fmt: skip
    """Returns the nth lowest token with this logit; NOWHERE if there are fewer."""
    found = tl.full([], NOWHERE, tl.int32)
    if listed:
        tied = ((xs == logit) & ((xs > kept_logit) | (tokens <= kept_token))).to(tl.int32)
        found = tl.min(tl.where((tied == 1) & (tl.cumsum(tied, 0) == nth), tokens, NOWHERE))
    else:
        before = tl.zeros([], tl.int32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = load_tile(row, token, vocab)
            tied = ((x == logit) & (token < vocab) & ((x > kept_logit) | (token <= kept_token))).to(tl.int32)
            here = tl.where((tied == 1) & (before + tl.cumsum(tied, 0) == nth), token, NOWHERE)
            found = tl.minimum(found, tl.min(here))
            before += tl.sum(tied)
    return found


@triton.jit
def cutoff_of_candidates(
    xs, tokens, listed, above, target, lowest, highest, row, vocab, top, inverse, kept_logit, kept_token,
    MASS: tl.constexpr, UNUSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the last logit and token of a filter that keeps tokens until their weight reaches `target`.

    above: weight that precedes all candidates. The cutoff lies between `lowest` and `highest`.
    """
    above = tl.where(listed, above, 0.0)
    weights = weight_of(xs, tokens, vocab, top, inverse, kept_logit, kept_token, MASS)
    low, high = _keys(lowest, UNUSED), _keys(tl.minimum(highest, top), UNUSED) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        reached = above + weight_from(
            _logit_of(middle, UNUSED), xs, weights, listed, row, vocab, top, inverse, kept_logit, kept_token,
            MASS, BLOCK,
        )  # fmt: skip
        low, high = tl.where(reached >= target, middle, low), tl.where(reached >= target, high, middle)
    logit = _logit_of(low, UNUSED)
    above += weight_from(
        _logit_of(low + 1, UNUSED), xs, weights, listed, row, vocab, top, inverse, kept_logit, kept_token, MASS, BLOCK
    )
    each = 1.0
    if MASS:
        each = tl.maximum(fast_exp((logit - top) * inverse), 1e-37)
    missing = tl.minimum(tl.maximum(tl.ceil((target - above) / each), 1.0), 1e9).to(tl.int32)
    return logit, _nth(missing, logit, xs, tokens, listed, row, vocab, kept_logit, kept_token, BLOCK)


@triton.jit
def load_candidates(
    row, candidates, item, parts, list_size, log_parts, PARTS: tl.constexpr, MOST: tl.constexpr
):  # fmt: skip
    """Returns true if all candidates of a row are listed, and their logits and tokens [MOST].

    candidates: a `CandidateLists`. The list of a part has `list_size` entries. 2 ** log_parts > parts.
    """
    part = tl.arange(0, PARTS)
    first = item.to(tl.int64) * parts
    count = load_part(candidates.counts + first + part, part < parts, 0)
    tl.store(candidates.running + first + part, tl.cumsum(count, 0), mask=part < parts)
    tl.debug_barrier()
    n = tl.sum(count)
    place = tl.arange(0, MOST)
    valid = place < n
    listed_all = (n <= MOST) & (tl.max(count) <= list_size)
    owner = tl.zeros([MOST], tl.int32)  # number of parts whose candidates all precede the place
    for bit in range(log_parts):
        next_part = owner + (1 << (log_parts - 1 - bit))
        inside = valid & (next_part <= parts)
        passed = tl.load(candidates.running + first + next_part - 1, mask=inside, other=NOWHERE) <= place
        owner = tl.where(passed, next_part, owner)
    before = tl.load(candidates.running + first + owner - 1, mask=valid & (owner > 0), other=0)
    valid = valid & (place - before < list_size)
    tokens = load_part(candidates.tokens + (first + owner) * list_size + place - before, valid, NOWHERE)
    return listed_all, tl.load(row + tokens, mask=valid, other=float("-inf")).to(tl.float32), tokens
