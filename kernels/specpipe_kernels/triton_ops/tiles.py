"""Device functions over a span of a row, tile after tile: its statistics, its draw, and how a row's follow from them.

A span's tiles are accumulated lane by lane and reduced once. The next tile is loaded before this one is worked on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.triton_ops.philox import gumbel_tile
from specpipe_kernels.triton_ops.rows import NOWHERE, best_of, is_kept, load_part, load_tile


@triton.jit
def span_of(part, steps, vocab, BLOCK: tl.constexpr):
    """→ begin and end of a span of so many tiles."""
    begin = part * steps * BLOCK
    return begin, tl.minimum(begin + steps * BLOCK, vocab)


@triton.jit
def next_tile(row, start, end, vocab, BLOCK: tl.constexpr):
    # Not masked by `end` lane by lane: only the vocabulary is known to be aligned, and keeps loads wide.
    return load_tile(row, start + tl.arange(0, BLOCK), tl.where(start < end, vocab, 0))


@triton.jit
def larger(x, top):
    """The larger of two logits, NaN if one is."""
    return tl.maximum(x, top, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sound_top(tops, largest):
    """`largest` of `tops`, but NaN if one of them is NaN or +inf."""
    unsound = (tl.max(tl.where(tops != tops, 1, 0)) == 1) | (largest == float("inf"))
    return tl.where(unsound, float("nan"), largest)


@triton.jit
def largest_of_span(row, begin, end, vocab, BLOCK: tl.constexpr):
    """→ largest logit of a span, NaN if one is NaN or +inf, and the lowest token id that has it."""
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    token = begin + lane
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        token = tl.where(x > top, start + lane, token)
        top = larger(x, top)
        x = following
    largest, at = best_of(top, token)
    return sound_top(top, largest), at


@triton.jit
def mass_of_tile(x, offsets, top, inverse, bound_logit, bound_token, item, TRUNCATED: tl.constexpr):
    kept = is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED)
    return tl.where(kept, tl.exp((x - top) * inverse), 0.0)


@triton.jit
def _mass_below(
    row, begin, end, vocab, top, inverse, bound_logit, bound_token, item, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        x = load_tile(row, start + lane, vocab)
        total += mass_of_tile(x, start + lane, top, inverse, bound_logit, bound_token, item, TRUNCATED)
    return tl.sum(total)


@triton.jit
def mass_of_span(
    row, begin, end, vocab, inverse, bound_logit, bound_token, item, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """→ largest logit of a span (NaN as above), the mass of what is kept of it over that of `reference`, `reference`.

    The reference is the first tile's largest logit: it needs no pass of its own. Where that is -inf, or a later one so
    much larger that the mass overflows, a second pass refers to the largest of all.
    """
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    first = tl.max(x)
    reference = tl.where((first > float("-inf")) & (first < float("inf")), first, 0.0)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        top = larger(x, top)
        total += mass_of_tile(x, start + lane, reference, inverse, bound_logit, bound_token, item, TRUNCATED)
        x = following
    largest = tl.max(top)
    mass = tl.sum(total)
    helpless = (mass == float("inf")) | (first == float("-inf"))
    if helpless & (largest > float("-inf")) & (largest < float("inf")):
        reference = largest
        mass = _mass_below(row, begin, end, vocab, reference, inverse, bound_logit, bound_token, item, TRUNCATED, BLOCK)
    return sound_top(top, largest), mass, reference


@triton.jit
def draw_from_span(
    row, begin, end, vocab, inverse, bound_logit, bound_token, item, seed, position, index, purpose,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """→ largest of logits over temperature plus Gumbel noise, its token, and the largest logit (NaN as above)."""
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    token = begin + lane
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        top = larger(x, top)
        kept = is_kept(x, start + lane, bound_logit, bound_token, item, TRUNCATED)
        noise = gumbel_tile(seed, position, index, purpose, start, BLOCK)
        score = tl.where(kept, x * inverse + noise, float("-inf"))
        token = tl.where(score > best, start + lane, token)
        best = tl.maximum(score, best)
        x = following
    score, drawn = best_of(best, token)
    return score, drawn, sound_top(top, tl.max(top))


@triton.jit
def status_of(tops, AXIS: tl.constexpr):
    """→ the `Status` of rows and their largest logits, from those of their spans."""
    largest = tl.max(tops, AXIS)
    unsound = tl.max(tl.where(tops != tops, 1, 0), AXIS)
    return tl.where(unsound == 1, 1, tl.where(largest == float("-inf"), 2, 0)), largest


@triton.jit
def load_parts(values, item, parts, mask, other, PARTS: tl.constexpr):
    """[N, PARTS] of the rows `item` [N]."""
    part = tl.arange(0, PARTS)
    used = mask[:, None] & (part < parts)[None, :]
    return load_part(values + item.to(tl.int64)[:, None] * parts + part[None, :], used, other)


@triton.jit
def row_lse(part_top, part_mass, part_reference, item, inverse, parts, mask, PARTS: tl.constexpr):
    """→ status and log-sum-exp of the rows `item` [N]."""
    status, largest = status_of(load_parts(part_top, item, parts, mask, float("-inf"), PARTS), 1)
    masses = load_parts(part_mass, item, parts, mask, 0.0, PARTS)
    references = load_parts(part_reference, item, parts, mask, 0.0, PARTS)
    # A span without mass may have any reference.
    scale = tl.where(masses > 0.0, tl.exp((references - largest[:, None]) * inverse), 0.0)
    return status, largest * inverse + tl.log(tl.sum(masses * scale, 1))


@triton.jit
def best_tokens(part_score, part_token, item, parts, mask, PARTS: tl.constexpr):
    """→ lowest token id of the largest score of each of the rows `item` [N]."""
    scores = load_parts(part_score, item, parts, mask, float("-inf"), PARTS)
    tokens = load_parts(part_token, item, parts, mask, NOWHERE, PARTS)
    return tl.min(tl.where(scores == tl.max(scores, 1)[:, None], tokens, NOWHERE), 1)
