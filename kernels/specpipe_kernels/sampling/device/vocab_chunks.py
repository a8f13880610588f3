"""Device functions of a draw in two levels: first a chunk of the vocabulary by its mass, then a token inside it.

C chunks a row, [CHUNKS] with padding; a tile is a chunk. Where a program has one chunk it finds the chunk's token too,
so that the last program of a row has only to pick; where it has several, the last one alone draws, in one chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from specpipe_kernels import types
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.sampling.device import logit_rows as rows
from specpipe_kernels.sampling.device.logit_rows import is_kept, load_part, load_tile
from specpipe_kernels.sampling.device.philox import gumbel_tile
from specpipe_kernels.sampling.device.ranked_keys import rank, unrank
from specpipe_kernels.sampling.device.row_spans import (
    finite_or_zero,
    is_helpless,
    larger,
    largest_of_span,
    mass_of_tile,
    next_tile,
    status_of_masses,
)


class ChunkTiling(NamedTuple):
    """How the chunks of rows are spread over programs."""

    block: int
    """Entries of a chunk, or of the row if it is shorter."""
    chunks: int
    """Of a row."""
    per: int
    """Chunks of a program."""
    parts: int
    """Programs of a row."""
    chunks_pad: int

    @property
    def warps(self) -> int:
        return max(1, self.block // 256)


def chunk_tiling(vocab: int, requests: int, *, programs: int = 0) -> ChunkTiling:
    """programs: of all rows, unless there are more rows; rows.PROGRAMS if not given."""
    chunks = cdiv(vocab, types.CHUNK)
    per = cdiv(chunks, min(chunks, max(1, (programs or rows.PROGRAMS) // requests)))
    block = max(16, min(types.CHUNK, power_of_2(vocab)))
    return ChunkTiling(block, chunks, per, cdiv(chunks, per), power_of_2(chunks))


@triton.jit
def draw_from_chunk(
    x, begin, inverse, bound_logit, bound_token, item, seed, position, index, purpose,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """→ a chunk's mass over that of the reference, NaN or inf if a logit is; the reference; the score and the token of
    its draw. x: its logits."""
    offsets = begin + tl.arange(0, BLOCK)
    # Needs nothing of x, so it is computed while x is on its way.
    noise = gumbel_tile(seed, position, index, purpose, begin, BLOCK)
    reference = finite_or_zero(tl.max(x))
    mass = tl.sum(mass_of_tile(x, offsets, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
    kept = is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED)
    score, at = tl.max(tl.where(kept, x * inverse + noise, float("-inf")), 0, return_indices=True)
    return mass, reference, score, begin + at


@triton.jit
def store_masses(
    row, begin, end, vocab, inverse, bound_logit, bound_token, item, masses,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the mass over that of `reference` of each chunk of a span, NaN or inf if a logit is; → `reference`.

    It is the first chunk's largest logit, or, where that is no help, the span's, found in further passes.
    """
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    first = tl.max(x)
    reference = finite_or_zero(first)
    heaviest = 0.0
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        mass = tl.sum(mass_of_tile(x, start + lane, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
        tl.store(masses + start // BLOCK, mass)
        heaviest = larger(mass, heaviest)
        x = following
    if is_helpless(heaviest, first):
        largest, _ = largest_of_span(row, load_tile(row, begin + lane, vocab), begin, end, vocab, BLOCK)
        reference = finite_or_zero(largest)
        for start in range(begin, end, BLOCK):
            x = load_tile(row, start + lane, vocab)
            mass = tl.sum(mass_of_tile(x, start + lane, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
            tl.store(masses + start // BLOCK, mass)
    return reference


@triton.jit
def load_log_masses(chunk_mass, part_reference, item, inverse, chunks, parts, per, CHUNKS: tl.constexpr):
    """→ status of a row, its largest reference, and [CHUNKS] logarithms of its chunks' masses over that of it."""
    lane = tl.arange(0, CHUNKS)
    used = lane < chunks
    wide = item.to(tl.int64)
    mass = load_part(chunk_mass + wide * chunks + lane, used, 0.0)
    reference = load_part(part_reference + wide * parts + lane // per, used, 0.0)
    status, largest = status_of_masses(mass, reference, 0)
    return status, largest, tl.where(mass > 0.0, tl.log(mass) + (reference - largest) * inverse, float("-inf"))


@triton.jit
def pick(log_masses, noise, names):
    """→ score of the chunk that a row's draw is from, -inf if none has mass, and its entry of `names`, which rise."""
    return unrank(tl.max(rank(log_masses + noise, names)))
