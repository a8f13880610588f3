"""Groups pairs of a token and an expert by expert, in one launch and without the host.

One program per expert. Each counts the pairs of all experts, which costs less than a second launch, and writes the
numbers of its own pairs, in order, and its tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.experts.expert_args import PairTiles
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2

_BLOCK = 1024  # pairs per step


@triton.jit
def _count_pairs(ids, pairs, E_PAD: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the number of pairs of each expert, [E_PAD] int32."""
    counts = tl.zeros([E_PAD], tl.int32)
    for begin in range(0, pairs, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < pairs
        counts += tl.histogram(tl.load(ids + at, mask=inside, other=0), E_PAD, mask=inside).to(tl.int32)
    return counts


@triton.jit(do_not_specialize=["pairs", "num_tiles"])
def _group_pairs_kernel(
    ids, tiles, pairs, num_tiles,
    E: tl.constexpr, E_PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    counts = _count_pairs(ids, pairs, E_PAD, BLOCK)
    lanes = tl.arange(0, E_PAD)
    tile_counts = (counts + BLOCK_M - 1) // BLOCK_M
    count = tl.sum(tl.where(lanes == expert, counts, 0))
    first = tl.sum(tl.where(lanes < expert, counts, 0))
    first_tile = tl.sum(tl.where(lanes < expert, tile_counts, 0))

    for begin in range(0, (count + BLOCK_M - 1) // BLOCK_M, E_PAD):
        tile = begin + lanes
        mask = tile * BLOCK_M < count
        tl.store(tiles.expert + first_tile + tile, tl.zeros([E_PAD], tl.int32) + expert, mask=mask)
        tl.store(tiles.first + first_tile + tile, first + tile * BLOCK_M, mask=mask)
        tl.store(tiles.rows + first_tile + tile, tl.minimum(count - tile * BLOCK_M, BLOCK_M), mask=mask)
    used = tl.sum(tile_counts)
    for begin in range(used + expert * E_PAD, num_tiles, E * E_PAD):
        tile = begin + lanes
        tl.store(tiles.expert + tile, tl.full([E_PAD], -1, tl.int32), mask=tile < num_tiles)

    if count > 0:
        place = first
        for begin in range(0, pairs, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            mine = (tl.load(ids + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
            tl.store(tiles.pairs + place + tl.cumsum(mine, 0) - 1, at, mask=mine > 0)
            place += tl.sum(mine)


MAX_UNGROUPED = 32
"""Most pairs that each program of a product compares itself, which takes less time than one more launch."""


def find_tiles(expert_ids: Tensor, experts: int, block_m: int) -> PairTiles:
    """Returns the tiles of pairs, for `grouped_gemm` alone: few pairs stay ungrouped. Arguments of `group_pairs`."""
    tokens, top_k = expert_ids.shape
    if tokens <= block_m and tokens * top_k <= MAX_UNGROUPED:
        return PairTiles(expert_ids.view(-1), None, None, None)
    return group_pairs(expert_ids, experts, block_m)


def group_pairs(expert_ids: Tensor, experts: int, block_m: int) -> PairTiles:
    """Groups P pairs by expert. expert_ids: [M, k] int32, contiguous, each in 0 … experts - 1.

    The number of tiles depends on shapes alone: min(P, experts) + P // block_m are enough for any routing.
    """
    pairs = expert_ids.numel()
    assert pairs > 0 and expert_ids.dtype == torch.int32 and expert_ids.is_contiguous()
    tiles = min(pairs, experts) + pairs // block_m
    made = [expert_ids.new_empty(size) for size in (pairs, tiles, tiles, tiles)]
    result = PairTiles(*made)
    block = min(_BLOCK, max(16, power_of_2(pairs)))
    _group_pairs_kernel[(experts,)](
        expert_ids, result, pairs, tiles, E=experts, E_PAD=max(16, power_of_2(experts)), BLOCK_M=block_m, BLOCK=block,
        num_warps=4, **launch_options(expert_ids),
    )  # fmt: skip
    return result
