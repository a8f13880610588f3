"""Draw the tokens that replace rejected drafts, from probabilities: a tiled argmax of max(p - q, 0) / noise.

N rows, V vocabulary entries. Noise comes as a reciprocal: a division an entry costs more than the rest of the tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
def _inverse_noise(
    inverse_noise, noise_row, stride_noise, seed, position, index, start, vocab,
    KEYED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = start + tl.arange(0, BLOCK)
    if KEYED:
        inverse = 1.0 / exponential_tile(seed, position, index, _RECOVERED, start, BLOCK)
    else:
        inverse = tl.load(inverse_noise + noise_row * stride_noise + offsets, mask=offsets < vocab, other=0.0)
    return inverse


@triton.jit(do_not_specialize=["tiles"])
def _recover_kernel(
    target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, seeds, positions, indices,
    part_score, part_token, counters, out, stride_target, stride_draft, stride_noise, vocab, tiles,
    ONE_HOT: tl.constexpr, KEYED: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_INDICES: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile's best entry of the residual, NaN where p or q is; the last program of a row finds the row's."""
    wait_for_inputs(PDL)
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    wide = row.to(tl.int64)
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab
    p_row = target_probs + wide * stride_target
    p = tl.load(p_row + offsets, mask=inside, other=0.0).to(tl.float32)
    if ONE_HOT:
        residual = tl.where(offsets == tl.load(draft_token_ids + row), 0.0, p)
    else:
        residual = p - tl.load(draft_probs + wide * stride_draft + offsets, mask=inside, other=0.0).to(tl.float32)
    seed = tl.zeros([], tl.int64)
    position = tl.zeros([], tl.int64)
    index = tl.zeros([], tl.int32)
    noise_row = wide
    if KEYED:
        seed = tl.load(seeds + row)
        position = tl.load(positions + row)
        if HAS_INDICES:
            index = tl.load(indices + row).to(tl.int32)
    elif HAS_ROWS:
        noise_row = tl.load(noise_rows + row).to(tl.int64)
    inverse = _inverse_noise(
        inverse_noise, noise_row, stride_noise, seed, position, index, tile * BLOCK, vocab, KEYED, BLOCK
    )
    unsound = tl.max(tl.where((residual != residual) | (p != p), 1, 0))
    score, token = best_of(tl.maximum(residual, 0.0) * inverse, offsets)
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
            p = tl.load(p_row + offsets, mask=offsets < vocab, other=0.0).to(tl.float32)
            inverse = _inverse_noise(
                inverse_noise, noise_row, stride_noise, seed, position, index, start, vocab, KEYED, BLOCK
            )
            score, token = best_of(p * inverse, offsets)
            drawn = tl.where(score > best, token, drawn)
            best = tl.maximum(best, score)
    tl.store(out + row, tl.where(unsound == 1, -1, drawn).to(tl.int64))


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
    cut = cut_of(vocab, rows)
    tiles = triton.cdiv(vocab, cut.tile)
    _recover_kernel[(rows * tiles,)](
        target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, seeds, positions, indices,
        floats(target_probs, rows, tiles), int32s(target_probs, rows, tiles), arrivals(target_probs, rows), out,
        target_probs.stride(0), 0 if draft_probs is None else draft_probs.stride(0),
        0 if inverse_noise is None else inverse_noise.stride(0), vocab, tiles,
        ONE_HOT=draft_probs is None, KEYED=inverse_noise is None, HAS_ROWS=noise_rows is not None,
        HAS_INDICES=indices is not None, BLOCK=cut.tile, TILES=triton.next_power_of_2(tiles), num_warps=cut.warps,
        **launch_options(target_probs),
    )  # fmt: skip
    return out
