"""Device functions over a span of a row, tile after tile: statistics and draws of spans, and their combination per row.

A span's tiles are accumulated lane by lane and reduced once. The next tile is loaded before the current one is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import LOG2_E, fast_exp2, multiply_subtract
from specpipe_kernels.sampling.device.logit_rows import NOWHERE, best_of, is_kept, load_part, load_tile
from specpipe_kernels.sampling.device.philox import lag_tile
from specpipe_kernels.sampling.device.ranked_keys import rank, unrank

MAX_MASS = tl.constexpr(1e30)  # larger masses overflow in sums
# Scores of this size have a resolution of 5e-4. Larger ones would tie, so that low temperatures drew the wrong token.
MAX_SCORE = tl.constexpr(4096.0)
# Larger logits over temperature are all the same to fp32: two that differ at all differ by a factor above 2^127.
MAX_SHIFT = tl.constexpr(2.0**31)


class ExponentScale(NamedTuple):
    """Constants on the device: (logit - reference) over temperature, in base 2, is logit * scale - shift - rest.

    The product is exact in a fused multiply-add, so nothing is lost where fp32 has no fraction left for it. Differences
    from the reference would take one instruction more.
    """

    scale: Any
    """1 / (temperature ln 2)."""
    shift: Any
    """reference * scale, rounded."""
    rest: Any
    """What rounding took from it, from -64 to 64."""


@triton.jit
def exponent_scale(reference, inverse):
    """Returns the `ExponentScale` of a finite logit and 1 / temperature."""
    scale = tl.minimum(inverse * LOG2_E, 1.0 / tl.maximum(tl.abs(reference), 1e-30) * MAX_SHIFT)
    shift = reference * scale
    return ExponentScale(scale, shift, multiply_subtract(reference, scale, shift))


@triton.jit
def span_of(part, steps, vocab, BLOCK: tl.constexpr):
    """Returns begin and end of span `part` of `steps` tiles."""
    begin = part * steps * BLOCK
    return begin, tl.minimum(begin + steps * BLOCK, vocab)


@triton.jit
def next_tile(row, start, end, vocab, BLOCK: tl.constexpr):
    """Returns the tile from `start`; all -inf beyond `end`."""
    # Not masked by `end` per lane: only the vocabulary is known to be aligned, which keeps loads wide.
    return load_tile(row, start + tl.arange(0, BLOCK), tl.where(start < end, vocab, 0))


@triton.jit
def larger(x, top):
    """Returns the larger of two logits, NaN if one is."""
    return tl.maximum(x, top, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_if_invalid(tops, largest):
    """Returns `largest`, the maximum of `tops`, or NaN if one of them is NaN or +inf."""
    invalid = (tl.max(tl.where(tops != tops, 1, 0)) == 1) | (largest == float("inf"))
    return tl.where(invalid, float("nan"), largest)


@triton.jit
def largest_of_span(row, x, begin, end, vocab, BLOCK: tl.constexpr):
    """Returns a span's largest logit, NaN if one is NaN or +inf, and the lowest token id that has it. x: first tile."""
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    token = begin + lane
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        token = tl.where(x > top, start + lane, token)
        top = larger(x, top)
        x = following
    largest, at = best_of(top, token)
    return nan_if_invalid(top, largest), at


@triton.jit
def finite_or_zero(x):
    """Returns x, or 0 where it is not finite."""
    return tl.where((x > float("-inf")) & (x < float("inf")), x, 0.0)


@triton.jit
def mass_of_tile(x, offsets, exponent, bounds, item, TRUNCATED: tl.constexpr):
    """Returns 2^(x * scale - shift) of an `ExponentScale`; 0 where truncated, NaN where x is."""
    mass = fast_exp2(multiply_subtract(x, exponent.scale, exponent.shift))
    if TRUNCATED:
        kept = is_kept(x, offsets, bounds, item, TRUNCATED)
        mass = tl.where(kept | (x != x), mass, 0.0)
    return mass


@triton.jit
def needs_reference(mass, first):
    """Returns true if a mass is invalid, or overflows because the first tile's largest logit, `first`, is too small."""
    return ~(mass < MAX_MASS) | (first == float("-inf"))


@triton.jit
def mass_of_span(
    row, x, begin, end, vocab, inverse, bounds, item, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Returns the mass of a span's kept logits relative to `reference` (NaN if one is NaN or +inf), and `reference`.

    x is the first tile. Its largest logit is the reference, which needs no pass of its own. Where the mass overflows
    with it, further passes use the largest logit of the span.
    """
    lane = tl.arange(0, BLOCK)
    first = tl.max(x)
    reference = finite_or_zero(first)
    exponent = exponent_scale(reference, inverse)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        total += mass_of_tile(x, start + lane, exponent, bounds, item, TRUNCATED)
        x = following
    mass = tl.sum(total)
    if needs_reference(mass, first):
        reference, _ = largest_of_span(row, load_tile(row, begin + lane, vocab), begin, end, vocab, BLOCK)
        exponent = exponent_scale(reference, inverse)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(begin, end, BLOCK):
            x = load_tile(row, start + lane, vocab)
            total += mass_of_tile(x, start + lane, exponent, bounds, item, TRUNCATED)
        mass = tl.where(reference == reference, tl.sum(total), float("nan"))
    # Infinite references are handled apart: inf - inf would give NaN for valid rows.
    return tl.where(reference == float("-inf"), 0.0, mass * fast_exp2(-exponent.rest)), reference


@triton.jit
def _largest_score(
    row, x, begin, end, vocab, reference, inverse, bounds, item, seed, position, index, purpose,
    CENTRED: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the largest score of a span, NaN if a logit is NaN or +inf, and its token; see `draw_from_span`.

    CENTRED subtracts `reference` from the logits, which takes one instruction more.
    """
    lane = tl.arange(0, BLOCK)
    scale = inverse * LOG2_E
    least = tl.full([BLOCK], float("inf"), tl.float32)  # negated scores, which saves the negation
    at = tl.zeros([BLOCK], tl.int32) + begin
    # Two tiles share the key schedule of Philox.
    for start in tl.range(begin, end, BLOCK, loop_unroll_factor=2):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        lag = lag_tile(seed, position, index, purpose, start, BLOCK)
        if CENTRED:
            lag -= (x - reference) * scale
        else:
            lag -= x * scale
        if TRUNCATED:
            kept = is_kept(x, start + lane, bounds, item, TRUNCATED)
            lag = tl.where(kept | (x != x), lag, float("inf"))
        at = tl.where(lag < least, start, at)
        least = tl.minimum(lag, least, propagate_nan=tl.PropagateNan.ALL)
        x = following
    score, drawn = best_of(-least, at + lane)
    return nan_if_invalid(-least, score), drawn


@triton.jit
def draw_from_span(
    row, x, begin, end, vocab, inverse, bounds, item, seed, position, index, purpose,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the largest score of a span, NaN if a logit is NaN or +inf, its token, and the score's reference.

    x is the first tile. A score is (logit - reference) over temperature plus Gumbel noise, in base 2, up to a constant.
    The reference is 0; where scores are so large with it that they are inexact, a second pass uses the span's largest
    logit.
    """
    score, token = _largest_score(
        row, x, begin, end, vocab, 0.0, inverse, bounds, item, seed, position, index, purpose, False, TRUNCATED, BLOCK
    )
    reference = 0.0
    if ~(tl.abs(score) <= MAX_SCORE) & (score != float("-inf")):
        x = load_tile(row, begin + tl.arange(0, BLOCK), vocab)
        largest, _ = largest_of_span(row, x, begin, end, vocab, BLOCK)
        reference = finite_or_zero(largest)
        score, token = _largest_score(
            row, x, begin, end, vocab, reference, inverse, bounds, item, seed, position, index, purpose,
            True, TRUNCATED, BLOCK,
        )  # fmt: skip
    return score, token, reference


@triton.jit
def common_scores(score, reference, inverse, AXIS: tl.constexpr):
    """Returns scores relative to the largest reference of a row, so that spans can be compared."""
    largest = tl.max(tl.where(score > float("-inf"), reference, float("-inf")), AXIS, keep_dims=True)
    return score + (reference - finite_or_zero(largest)) * (inverse * LOG2_E)


@triton.jit
def status_of(best, AXIS: tl.constexpr):
    """Returns the `Status` of rows from their spans' largest logits or scores."""
    invalid = tl.max(tl.where(best != best, 1, 0), AXIS)
    return tl.where(invalid == 1, 1, tl.where(tl.max(best, AXIS) == float("-inf"), 2, 0))


@triton.jit
def status_of_masses(mass, reference, AXIS: tl.constexpr):
    """Returns the `Status` of rows from the masses of their parts, and the largest reference that has a mass."""
    # One reduction: no reference is +inf, which marks an invalid part here.
    used = tl.where(mass > 0.0, reference, float("-inf"))
    largest = tl.max(tl.where(mass < float("inf"), used, float("inf")), AXIS)
    status = tl.where(largest == float("inf"), 1, tl.where(largest == float("-inf"), 2, 0))
    return status, tl.where(status == 1, 0.0, largest)


@triton.jit
def load_parts(values, item, parts, mask, other, PARTS: tl.constexpr):
    """Returns [N, PARTS] values of the rows `item` [N]."""
    part = tl.arange(0, PARTS)
    used = mask[:, None] & (part < parts)[None, :]
    return load_part(values + item.to(tl.int64)[:, None] * parts + part[None, :], used, other)


@triton.jit
def row_lse(part_mass, part_reference, item, inverse, parts, mask, PARTS: tl.constexpr):
    """Returns status, largest logit, and log of the mass relative to it (NaN where invalid) of the rows `item` [N].

    Their sum, the log-sum-exp, would have no fraction left in fp32 at low temperatures: ties of logits of 17 would lose
    their probability at 1e-6.
    """
    masses = load_parts(part_mass, item, parts, mask, 0.0, PARTS)
    references = load_parts(part_reference, item, parts, mask, 0.0, PARTS)
    status, largest = status_of_masses(masses, references, 1)
    # A span without mass may have any reference.
    scaled = tl.where(masses > 0.0, masses * tl.exp((references - largest[:, None]) * inverse), 0.0)
    log_mass = tl.where(status == 1, float("nan"), tl.log(tl.sum(scaled, 1)))
    return status, finite_or_zero(largest), log_mass


@triton.jit
def log_prob(x, reference, inverse, log_mass):
    """Returns the log-probability of a logit x, which rounding does not make positive; see `row_lse`."""
    return tl.minimum((x - reference) * inverse - log_mass, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def status_of_score(score):
    """Returns the `Status` of rows from their largest logits or scores."""
    return tl.where(score != score, 1, tl.where(score == float("-inf"), 2, 0))


@triton.jit
def _best_of_parts(scores, part_token, item, parts, mask, PARTS: tl.constexpr):
    tokens = load_parts(part_token, item, parts, mask, NOWHERE, PARTS)
    # One reduction. NaN of `nan_if_invalid` is positive, so its key is the largest.
    return unrank(tl.max(rank(scores, tokens), 1))


@triton.jit
def best_tokens(part_score, part_token, item, parts, mask, PARTS: tl.constexpr):
    """Returns the largest score of each of the rows `item` [N], NaN if one is, and the lowest token id that has it."""
    return _best_of_parts(
        load_parts(part_score, item, parts, mask, float("-inf"), PARTS), part_token, item, parts, mask, PARTS
    )


@triton.jit
def best_referred_tokens(part_score, part_token, referred, item, inverse, parts, mask, PARTS: tl.constexpr):
    """Returns what `best_tokens` does where scores of +inf stand for those in `referred`, which have references."""
    scores = load_parts(part_score, item, parts, mask, float("-inf"), PARTS)
    elsewhere = scores == float("inf")
    part = tl.arange(0, PARTS)[None, :]
    at = item.to(tl.int64)[:, None] * parts + part
    scores = tl.where(elsewhere, load_part(referred.scores + at, elsewhere, 0.0), scores)
    references = load_part(referred.references + at, elsewhere, 0.0)
    scores = common_scores(scores, references, inverse, 1)
    return _best_of_parts(scores, part_token, item, parts, mask, PARTS)
