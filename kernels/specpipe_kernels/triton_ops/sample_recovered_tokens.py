"""Draw the tokens that replace rejected drafts, from probabilities: a tiled argmax of max(p - q, 0) / noise.

N rows, V vocabulary entries. Noise comes as a reciprocal: a division an entry costs more than the rest of the tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.philox import exponential_tile
from specpipe_kernels.triton_ops.rows import NOWHERE, best_of, floats, int32s, tile_of
from specpipe_kernels.types import Purpose

_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))


@triton.jit
def _recover_tiles_kernel(
    target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, seeds, positions, indices,
    out_score, out_token, stride_target, stride_draft, stride_noise, vocab,
    ONE_HOT: tl.constexpr, KEYED: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_INDICES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Best entries of a tile: of the residual in [N, 0, T], of p in [N, 1, T]; NaN where p or q is."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    wide = row.to(tl.int64)
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < vocab
    p = tl.load(target_probs + wide * stride_target + offsets, mask=inside, other=0.0).to(tl.float32)
    if ONE_HOT:
        residual = tl.where(offsets == tl.load(draft_token_ids + row), 0.0, p)
    else:
        residual = p - tl.load(draft_probs + wide * stride_draft + offsets, mask=inside, other=0.0).to(tl.float32)
    if KEYED:
        index = tl.full([], 0, tl.int32)
        if HAS_INDICES:
            index = tl.load(indices + row).to(tl.int32)
        noise = exponential_tile(tl.load(seeds + row), tl.load(positions + row), index, _RECOVERED, tile * BLOCK, BLOCK)
        inverse = 1.0 / noise
    else:
        noise_row = wide
        if HAS_ROWS:
            noise_row = tl.load(noise_rows + row).to(tl.int64)
        inverse = tl.load(inverse_noise + noise_row * stride_noise + offsets, mask=inside, other=0.0)
    tiles = tl.num_programs(1)
    out = wide * 2 * tiles + tile
    unsound = tl.max(tl.where((residual != residual) | (p != p), 1, 0))
    score, token = best_of(tl.maximum(residual, 0.0) * inverse, offsets)
    tl.store(out_score + out, tl.where(unsound == 1, float("nan"), score))
    tl.store(out_token + out, token)
    score, token = best_of(p * inverse, offsets)
    tl.store(out_score + out + tiles, score)
    tl.store(out_token + out + tiles, token)


@triton.jit
def _recover_kernel(scores, tokens, out, tiles, TILES: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, TILES)
    used = lane < tiles
    partial = row.to(tl.int64) * 2 * tiles + lane
    residuals = tl.load(scores + partial, mask=used, other=0.0)
    unsound = tl.max(tl.where(residuals != residuals, 1, 0))
    score, token = best_of(residuals, tl.load(tokens + partial, mask=used, other=NOWHERE))
    partial += tiles
    p_score, from_p = best_of(
        tl.load(scores + partial, mask=used, other=0.0), tl.load(tokens + partial, mask=used, other=NOWHERE)
    )
    drawn = tl.where(score > 0.0, token, tl.where(p_score > 0.0, from_p, -1))
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
    block = tile_of(vocab)
    tiles = -(-vocab // block)
    scores, tokens = floats(target_probs, rows, 2, tiles), int32s(target_probs, rows, 2, tiles)
    out = torch.empty(rows, dtype=torch.int64, device=target_probs.device)
    _recover_tiles_kernel[(rows, tiles)](
        target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, seeds, positions, indices,
        scores, tokens, target_probs.stride(0), 0 if draft_probs is None else draft_probs.stride(0),
        0 if inverse_noise is None else inverse_noise.stride(0), vocab,
        ONE_HOT=draft_probs is None, KEYED=inverse_noise is None, HAS_ROWS=noise_rows is not None,
        HAS_INDICES=indices is not None, BLOCK=block, num_warps=8,
    )  # fmt: skip
    _recover_kernel[(rows,)](scores, tokens, out, tiles, TILES=triton.next_power_of_2(tiles), num_warps=1)
    return out
