"""Device functions of a draw in two levels: first a chunk of the vocabulary by its mass, then a token inside it.

C chunks a row, [CHUNKS] with padding; a tile is a chunk. Where a program has one chunk it finds the chunk's token too,
so that the last program of a row has only to pick; where it has several, the last one alone draws, in one chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from specpipe_kernels import types
from specpipe_kernels.triton_ops import rows
from specpipe_kernels.triton_ops.philox import chunk_gumbel, gumbel_tile
from specpipe_kernels.triton_ops.rows import best_of, is_kept, load_part, load_tile
from specpipe_kernels.triton_ops.tiles import larger, mass_of_tile, next_tile, sound_top


class ChunkCut(NamedTuple):
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


def chunk_cut(vocab: int, requests: int) -> ChunkCut:
    chunks = triton.cdiv(vocab, types.CHUNK)
    per = triton.cdiv(chunks, min(chunks, max(1, rows.PROGRAMS // requests)))
    block = max(16, min(types.CHUNK, int(triton.next_power_of_2(vocab))))
    return ChunkCut(block, chunks, per, triton.cdiv(chunks, per), int(triton.next_power_of_2(chunks)))


@triton.jit
def draw_from_chunk(
    row, begin, vocab, inverse, bound_logit, bound_token, item, seed, position, index, purpose,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """→ a chunk's largest logit, NaN if one is NaN or +inf; its mass over that of the reference, the reference; the
    score and the token of its draw."""
    offsets = begin + tl.arange(0, BLOCK)
    x = load_tile(row, offsets, vocab)
    # Needs nothing of x, so it is computed while x is on its way.
    noise = gumbel_tile(seed, position, index, purpose, begin, BLOCK)
    kept = is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED)
    top = tl.max(x)
    reference = tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)
    mass = tl.sum(mass_of_tile(x, offsets, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
    score, token = best_of(tl.where(kept, x * inverse + noise, float("-inf")), offsets)
    return sound_top(x, top), mass, reference, score, token


@triton.jit
def store_masses(
    row, begin, end, vocab, inverse, bound_logit, bound_token, item, masses,
    TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the mass over that of `reference` of each chunk of a span; → largest logit (NaN as above), `reference`.

    The reference is the first chunk's largest logit, or, where that is no help, the span's in a second pass.
    """
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, vocab)
    first = tl.max(x)
    reference = tl.where((first > float("-inf")) & (first < float("inf")), first, 0.0)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    heaviest = 0.0
    for start in range(begin, end, BLOCK):
        following = next_tile(row, start + BLOCK, end, vocab, BLOCK)
        top = larger(x, top)
        mass = tl.sum(mass_of_tile(x, start + lane, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
        tl.store(masses + start // BLOCK, mass)
        heaviest = tl.maximum(heaviest, mass)
        x = following
    largest = tl.max(top)
    helpless = (heaviest == float("inf")) | (first == float("-inf"))
    if helpless & (largest > float("-inf")) & (largest < float("inf")):
        reference = largest
        for start in range(begin, end, BLOCK):
            x = load_tile(row, start + lane, vocab)
            mass = tl.sum(mass_of_tile(x, start + lane, reference, inverse, bound_logit, bound_token, item, TRUNCATED))
            tl.store(masses + start // BLOCK, mass)
    return sound_top(top, largest), reference


@triton.jit
def load_log_masses(
    chunk_mass, part_reference, item, largest, inverse, chunks, parts, per, CHUNKS: tl.constexpr
):  # fmt: skip
    """[CHUNKS] logarithms of a row's chunk masses over that of its largest logit; -inf where there is none."""
    lane = tl.arange(0, CHUNKS)
    used = lane < chunks
    wide = item.to(tl.int64)
    mass = load_part(chunk_mass + wide * chunks + lane, used, 0.0)
    reference = load_part(part_reference + wide * parts + lane // per, used, 0.0)
    return tl.where(mass > 0.0, tl.log(mass) + (reference - largest) * inverse, float("-inf"))


@triton.jit
def pick_chunk(log_masses, seed, position, index, purpose, chunks, CHUNKS: tl.constexpr):
    """→ the chunk that a row's draw is from; any of its chunks if it has no mass or an unsound one."""
    lane = tl.arange(0, CHUNKS)
    _, chunk = best_of(log_masses + chunk_gumbel(seed, position, index, purpose, lane), lane)
    return tl.minimum(chunk, chunks - 1)
