"""Device functions of a draw in two levels: first a chunk of the vocabulary by its mass, then a token of it.

C chunks per row, [CHUNKS] with padding; a tile is a chunk. A program with one chunk also draws the chunk's token, so
that the last program of a row only selects the chunk. With several chunks per program, only the last one draws a token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from specpipe_kernels import types
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.sampling.device import logit_rows
from specpipe_kernels.sampling.device.fast_math import fast_exp2, multiply_subtract
from specpipe_kernels.sampling.device.logit_rows import is_kept, load_part, load_tile
from specpipe_kernels.sampling.device.philox import lag_tile
from specpipe_kernels.sampling.device.ranked_keys import rank, unrank
from specpipe_kernels.sampling.device.row_spans import (
    exponent_scale,
    finite_or_zero,
    larger,
    largest_of_span,
    mass_of_tile,
    needs_reference,
    next_tile,
    status_of_masses,
)


class ChunkTiling(NamedTuple):
    """Split of the chunks of rows into programs."""

    block: int
    """Entries of a chunk, or of the row if it is shorter."""
    chunks: int
    """Chunks per row."""
    per: int
    """Chunks per program."""
    parts: int
    """Programs per row."""
    chunks_pad: int
    """Smallest power of 2 not below `chunks`."""

    @property
    def warps(self) -> int:
        """Warps per program."""
        return max(1, self.block // 256)


def chunk_tiling(device: torch.device, vocab: int, requests: int, *, waves: int = 1) -> ChunkTiling:
    """Splits `requests` rows of `vocab` entries. waves: multiple of `max_programs` to split into."""
    chunks = cdiv(vocab, types.CHUNK)
    per = cdiv(chunks, min(chunks, max(1, waves * logit_rows.max_programs(device) // requests)))
    block = max(16, min(types.CHUNK, power_of_2(vocab)))
    return ChunkTiling(block, chunks, per, cdiv(chunks, per), power_of_2(chunks))


@triton.jit
def draw_from_chunk(
    x, begin, inverse, bounds, item, seed, position, index, purpose,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns a chunk's mass relative to the reference (NaN or inf if a logit is), the reference, score and token.

    x [BLOCK]: logits of the chunk. The score is in base 2 and relative to the reference; see `draw_from_span`.
    """
    offsets = begin + tl.arange(0, BLOCK)
    # Does not depend on x: computed while x is loaded.
    lag = lag_tile(seed, position, index, purpose, begin, BLOCK)
    reference = finite_or_zero(tl.max(x))
    exponent = exponent_scale(reference, inverse)
    mass = tl.sum(mass_of_tile(x, offsets, exponent, bounds, item, TRUNCATED)) * fast_exp2(-exponent.rest)
    kept = is_kept(x, offsets, bounds, item, TRUNCATED)
    scaled = multiply_subtract(x, exponent.scale, exponent.shift)
    score, at = tl.max(tl.where(kept, scaled - lag, float("-inf")), 0, return_indices=True)
    return mass, reference, score - exponent.rest, begin + at


@triton.jit
def store_masses(
    row, begin, end, vocab, inverse, bounds, item, masses,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the mass of each chunk of a span relative to `reference` (NaN or inf if a logit is); returns `reference`.

    It is the first chunk's largest logit, or, where masses overflow with that, the span's, found in further passes.
    """
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    first = tl.max(x)
    reference = finite_or_zero(first)
    exponent = exponent_scale(reference, inverse)
    factor = fast_exp2(-exponent.rest)
    largest_mass = 0.0
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        mass = tl.sum(mass_of_tile(x, start + lane, exponent, bounds, item, TRUNCATED)) * factor
        tl.store(masses + start // BLOCK, mass)
        largest_mass = larger(mass, largest_mass)
        x = following
    if needs_reference(largest_mass, first):
        largest, _ = largest_of_span(row, load_tile(row, begin + lane, vocab), begin, end, vocab, BLOCK)
        reference = finite_or_zero(largest)
        exponent = exponent_scale(reference, inverse)
        factor = fast_exp2(-exponent.rest)
        for start in range(begin, end, BLOCK):
            x = load_tile(row, start + lane, vocab)
            mass = tl.sum(mass_of_tile(x, start + lane, exponent, bounds, item, TRUNCATED)) * factor
            tl.store(masses + start // BLOCK, mass)
    return reference


@triton.jit
def load_log_masses(chunk_mass, part_reference, item, inverse, chunks, parts, per, CHUNKS: tl.constexpr):
    """Returns a row's status, its largest reference, and [CHUNKS] logarithms of its chunks' masses relative to it."""
    lane = tl.arange(0, CHUNKS)
    used = lane < chunks
    row64 = item.to(tl.int64)
    mass = load_part(chunk_mass + row64 * chunks + lane, used, 0.0)
    reference = load_part(part_reference + row64 * parts + lane // per, used, 0.0)
    status, largest = status_of_masses(mass, reference, 0)
    return status, largest, tl.where(mass > 0.0, tl.log(mass) + (reference - largest) * inverse, float("-inf"))


@triton.jit
def select_chunk(log_masses, noise, labels):
    """Returns the score of the drawn chunk, -inf if none has mass, and its entry of `labels`, which ascend."""
    return unrank(tl.max(rank(log_masses + noise, labels)))
