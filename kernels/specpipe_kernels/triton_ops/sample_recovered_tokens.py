"""Draw the tokens that replace rejected drafts, from probabilities. N rows, V vocabulary entries.

With given noise, a tiled argmax of max(p - q, 0) / noise; it comes as a reciprocal, because a division an entry costs
more than the rest of the tile. With keyed noise the draw has two levels: a tile is a chunk, of which only the mass is
found, and the last program of a row draws one chunk and then a token of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.chunks import chunk_cut, pick_chunk
from specpipe_kernels.triton_ops.pdl import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.philox import exponential_tile
from specpipe_kernels.triton_ops.rows import (
    NOWHERE,
    arrivals,
    best_of,
    cut_of,
    floats,
    int32s,
    is_last,
    load_part,
)
from specpipe_kernels.types import Purpose

_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))


@triton.jit
def _weights(
    p_row, draft_probs, draft_token_ids, row, stride_draft, start, vocab, residual,
    ONE_HOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """→ max(p - q, 0) of a tile, or p where `residual` is false; whether p or q is NaN there."""
    offsets = start + tl.arange(0, BLOCK)
    inside = offsets < vocab
    p = tl.load(p_row + offsets, mask=inside, other=0.0).to(tl.float32)
    if ONE_HOT:
        left = tl.where(offsets == tl.load(draft_token_ids + row), 0.0, p)
    else:
        q = draft_probs + row.to(tl.int64) * stride_draft + offsets
        left = p - tl.load(q, mask=inside, other=0.0).to(tl.float32)
    unsound = tl.max(tl.where((left != left) | (p != p), 1, 0))
    return tl.maximum(tl.where(residual, left, p), 0.0), unsound


@triton.jit
def _recover_kernel(
    target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, part_score, part_token, counters, out,
    stride_target, stride_draft, stride_noise, vocab, tiles,
    ONE_HOT: tl.constexpr, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile's best entry of the residual, NaN where p or q is; the last program of a row finds the row's."""
    wait_for_inputs(PDL)
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    wide = row.to(tl.int64)
    p_row = target_probs + wide * stride_target
    noise_row = wide
    if HAS_ROWS:
        noise_row = tl.load(noise_rows + row).to(tl.int64)
    noise = inverse_noise + noise_row * stride_noise
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    weights, unsound = _weights(
        p_row, draft_probs, draft_token_ids, row, stride_draft, tile * BLOCK, vocab, True, ONE_HOT, BLOCK
    )
    score, token = best_of(weights * tl.load(noise + offsets, mask=offsets < vocab, other=0.0), offsets)
    partial = wide * tiles + tile
    tl.store(part_score + partial, tl.where(unsound == 1, float("nan"), score))
    tl.store(part_token + partial, token)
    let_next_start(PDL)
    if ~is_last(counters, row, tiles):
        return
    lane = tl.arange(0, TILES)
    scores = load_part(part_score + wide * tiles + lane, lane < tiles, 0.0)
    unsound = tl.max(tl.where(scores != scores, 1, 0))
    best, drawn = best_of(scores, load_part(part_token + wide * tiles + lane, lane < tiles, NOWHERE))
    if best == 0.0:
        # Nothing is left of p: this program alone draws from p.
        drawn = tl.full([], -1, tl.int32)
        for start in range(0, vocab, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            inside = offsets < vocab
            p = tl.load(p_row + offsets, mask=inside, other=0.0).to(tl.float32)
            score, token = best_of(p * tl.load(noise + offsets, mask=inside, other=0.0), offsets)
            drawn = tl.where(score > best, token, drawn)
            best = tl.maximum(best, score)
    tl.store(out + row, tl.where(unsound == 1, -1, drawn).to(tl.int64))


@triton.jit
def _recover_keyed_kernel(
    target_probs, draft_probs, draft_token_ids, seeds, positions, indices, chunk_mass, counters, out,
    stride_target, stride_draft, vocab, chunks,
    ONE_HOT: tl.constexpr, HAS_INDICES: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A chunk's mass of the residual, NaN where p or q is; the last program of a row draws."""
    wait_for_inputs(PDL)
    row = tl.program_id(0) // chunks
    chunk = tl.program_id(0) % chunks
    p_row = target_probs + row.to(tl.int64) * stride_target
    masses = chunk_mass + row.to(tl.int64) * chunks
    weights, unsound = _weights(
        p_row, draft_probs, draft_token_ids, row, stride_draft, chunk * BLOCK, vocab, True, ONE_HOT, BLOCK
    )
    tl.store(masses + chunk, tl.where(unsound == 1, float("nan"), tl.sum(weights)))
    let_next_start(PDL)
    if ~is_last(counters, row, chunks):
        return
    seed = tl.load(seeds + row)
    position = tl.load(positions + row)
    index = tl.zeros([], tl.int32)
    if HAS_INDICES:
        index = tl.load(indices + row).to(tl.int32)
    lane = tl.arange(0, CHUNKS)
    mass = load_part(masses + lane, lane < chunks, 0.0)
    unsound = tl.max(tl.where(mass != mass, 1, 0))
    residual = tl.max(tl.where(mass > 0.0, 1, 0)) == 1
    if ~residual:
        # Nothing is left of p: this program alone draws from p.
        for c in range(0, chunks):
            offsets = c * BLOCK + tl.arange(0, BLOCK)
            p = tl.load(p_row + offsets, mask=offsets < vocab, other=0.0).to(tl.float32)
            tl.store(masses + c, tl.sum(p))
        tl.debug_barrier()
        mass = load_part(masses + lane, lane < chunks, 0.0)
    log_masses = tl.where(mass > 0.0, tl.log(mass), float("-inf"))
    chunk = pick_chunk(log_masses, seed, position, index, _RECOVERED, chunks, CHUNKS)
    weights, _ = _weights(
        p_row, draft_probs, draft_token_ids, row, stride_draft, chunk * BLOCK, vocab, residual, ONE_HOT, BLOCK
    )
    noise = exponential_tile(seed, position, index, _RECOVERED, chunk * BLOCK, BLOCK)
    best, drawn = best_of(weights / noise, chunk * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row, tl.where((unsound == 1) | (best == 0.0), -1, drawn).to(tl.int64))


def sample_recovered_tokens(
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor | None,
    *,
    inverse_noise: Tensor | None,
    noise_rows: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    indices: Tensor | None,
) -> Tensor:
    """See `specpipe_kernels.sample_recovered_tokens`."""
    rows, vocab = target_probs.shape
    out = torch.empty(rows, dtype=torch.int64, device=target_probs.device)
    if rows == 0:
        return out
    q_stride = 0 if draft_probs is None else draft_probs.stride(0)
    if inverse_noise is None:
        keyed = chunk_cut(vocab, rows)
        _recover_keyed_kernel[(rows * keyed.chunks,)](
            target_probs, draft_probs, draft_token_ids, seeds, positions, indices,
            floats(target_probs, rows, keyed.chunks), arrivals(target_probs, rows), out,
            target_probs.stride(0), q_stride, vocab, keyed.chunks,
            ONE_HOT=draft_probs is None, HAS_INDICES=indices is not None, BLOCK=keyed.block, CHUNKS=keyed.chunks_pad,
            num_warps=keyed.warps, **launch_options(target_probs),
        )  # fmt: skip
        return out
    cut = cut_of(vocab, rows)
    tiles = triton.cdiv(vocab, cut.tile)
    _recover_kernel[(rows * tiles,)](
        target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows,
        floats(target_probs, rows, tiles), int32s(target_probs, rows, tiles), arrivals(target_probs, rows), out,
        target_probs.stride(0), q_stride, inverse_noise.stride(0), vocab, tiles,
        ONE_HOT=draft_probs is None, HAS_ROWS=noise_rows is not None, BLOCK=cut.tile,
        TILES=triton.next_power_of_2(tiles), num_warps=cut.warps, **launch_options(target_probs),
    )  # fmt: skip
    return out
