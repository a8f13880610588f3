"""Products of tokens with the weights of their experts, for all experts in one launch.

A program multiplies one tile of pairs (a token and one of its experts, grouped by expert) with BLOCK_N rows of that
expert's weight. Weights are in 16 or 32 bits, in mxfp4, which is converted in registers, or in 8 bits, which are
multiplied with activations in 8 bits. Where there are few programs, several share K.

The gated product reads the rows of its tokens from x and writes activations in the order of the sorted pairs; the
second product reads them in that order and writes weighted results in the order of the pairs.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.experts.expert_args import Fp8Blocks, GroupedInputs, GroupedSizes, GroupedTiling, PairTiles
from specpipe_kernels.experts.mxfp4_tile import SUM_FACTOR, mxfp4_quarter
from specpipe_kernels.layers.layer_args import SplitSums
from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, store_sums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Activation, ExpertWeights, Fp8ExpertWeight, Fp8Rows, Mxfp4Weight


@triton.jit
def _steps_of_split(split, STEPS: tl.constexpr, SPLITS: tl.constexpr):
    """Returns the first step of a split, and the step behind its last one."""
    EACH: tl.constexpr = (STEPS + SPLITS - 1) // SPLITS
    return split * EACH, tl.minimum(split * EACH + EACH, STEPS)


@triton.jit
def _multiply_mxfp4(
    x_rows, words, exponents, expert, row, in_n, in_m, split, acc, acc_up,
    SIZES: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns the sums over a split of K of mxfp4 weights, and with a gate those of the up projection.

    A step is a block of 128 columns: 32 words and 4 bytes of exponents in each row of the weight, those of all rows
    side by side.
    """
    BLOCKS: tl.constexpr = (SIZES.k + 127) // 128
    GATED: tl.constexpr = SIZES.up_offset > 0
    lanes = tl.arange(0, 32)
    ROWS: tl.constexpr = SIZES.n * (2 if GATED else 1)
    at = row + expert * (ROWS * (BLOCKS - 1))  # row in the first block of the expert
    words_at = words + at[:, None] * 32 + lanes[None, :]
    exponents_at = exponents + at
    first, end = _steps_of_split(split, BLOCKS, TILES.splits)
    for block in tl.range(first, end, num_stages=TILES.stages):
        tile = tl.load(words_at + block * (ROWS * 32), mask=in_n[:, None], other=0)
        tile_exponents = tl.load(exponents_at + block * ROWS, mask=in_n, other=0)
        if GATED:
            tile_up = tl.load(words_at + (block * ROWS + SIZES.up_offset) * 32, mask=in_n[:, None], other=0)
            up_exponents = tl.load(exponents_at + block * ROWS + SIZES.up_offset, mask=in_n, other=0)
        for quarter in tl.static_range(4):
            column = block * 128 + quarter * 32 + lanes
            x_tile = tl.load(x_rows + column[:, None], mask=in_m[None, :] & (column[:, None] < SIZES.k), other=0.0)
            acc = tl.dot(mxfp4_quarter(tile, tile_exponents, quarter, DTYPE, ASM), x_tile, acc)
            if GATED:
                acc_up = tl.dot(mxfp4_quarter(tile_up, up_exponents, quarter, DTYPE, ASM), x_tile, acc_up)
    if ASM:
        acc *= SUM_FACTOR
        acc_up *= SUM_FACTOR
    return acc, acc_up


@triton.jit
def _multiply(x_rows, weight, row, in_n, in_m, split, acc, acc_up, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the sums over a split of K, and with a gate those of the up projection."""
    K: tl.constexpr = SIZES.k
    GATED: tl.constexpr = SIZES.up_offset > 0
    first_step, end = _steps_of_split(split, (K + TILES.block_k - 1) // TILES.block_k, TILES.splits)
    for step in tl.range(first_step, end, num_stages=TILES.stages):
        k = step * TILES.block_k + tl.arange(0, TILES.block_k)
        x_tile = tl.load(x_rows + k[:, None], mask=in_m[None, :] & (k[:, None] < K), other=0.0)
        w_mask = in_n[:, None] & (k[None, :] < K)
        w_at = weight + row[:, None] * K + k[None, :]
        w_tile = tl.load(w_at, mask=w_mask, other=0.0)
        if GATED:
            w_up = tl.load(w_at + SIZES.up_offset * K, mask=w_mask, other=0.0)
        acc = tl.dot(w_tile, x_tile, acc, input_precision="ieee")
        if GATED:
            acc_up = tl.dot(w_up, x_tile, acc_up, input_precision="ieee")
    return acc, acc_up


@triton.jit
def _multiply_fp8(
    x_rows, x_scale, x_place, pairs, weight, weight_scale, expert, row, in_n, in_m, split, acc, acc_up,
    SIZES: tl.constexpr, TILES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Returns the sums over a split of K of 8-bit weights and activations, and with a gate those of the up projection.

    A step is not wider than the columns that share a scale, of the weight and of x.
    """
    K: tl.constexpr = SIZES.k
    GATED: tl.constexpr = SIZES.up_offset > 0
    SCALE_ROWS: tl.constexpr = (SIZES.n * (2 if GATED else 1) + FP8.rows - 1) // FP8.rows
    SCALE_COLUMNS: tl.constexpr = (K + FP8.columns - 1) // FP8.columns
    in_expert = row - expert * (SIZES.n * (2 if GATED else 1))
    scale_at = weight_scale + expert * (SCALE_ROWS * SCALE_COLUMNS)
    first_step, end = _steps_of_split(split, (K + TILES.block_k - 1) // TILES.block_k, TILES.splits)
    for step in tl.range(first_step, end, num_stages=TILES.stages):
        first = step * TILES.block_k
        k = first + tl.arange(0, TILES.block_k)
        x_tile = tl.load(x_rows + k[:, None], mask=in_m[None, :] & (k[:, None] < K), other=0.0)
        factor = tl.load(x_scale + first // FP8.group * pairs + x_place, mask=in_m, other=0.0)
        w_mask = in_n[:, None] & (k[None, :] < K)
        w_at = weight + row[:, None] * K + k[None, :]
        w_tile = tl.load(w_at, mask=w_mask, other=0.0)
        column = first // FP8.columns
        scale = tl.load(scale_at + in_expert // FP8.rows * SCALE_COLUMNS + column, mask=in_n, other=0.0)
        acc += tl.dot(w_tile, x_tile) * (scale[:, None] * factor[None, :])
        if GATED:
            w_up = tl.load(w_at + SIZES.up_offset * K, mask=w_mask, other=0.0)
            up_row = (in_expert + SIZES.up_offset) // FP8.rows
            scale_up = tl.load(scale_at + up_row * SCALE_COLUMNS + column, mask=in_n, other=0.0)
            acc_up += tl.dot(w_up, x_tile) * (scale_up[:, None] * factor[None, :])
    return acc, acc_up


@triton.jit
def _activate(gate, up, ACTIVATION: tl.constexpr):
    """Returns the gated activation of fp32 values."""
    if ACTIVATION.clamped:
        gate = tl.minimum(gate, ACTIVATION.limit)
        up = tl.minimum(tl.maximum(up, -ACTIVATION.limit), ACTIVATION.limit) + 1.0
    return gate / (1.0 + tl.exp(-ACTIVATION.alpha * gate)) * up


@triton.jit
def _load_tile(tiles, tile, pairs, lane, P_PAD: tl.constexpr):
    """Returns the expert of a tile, -1 if there is none, its number of pairs, and their places and numbers [BLOCK_M].

    P_PAD: pairs, at most, if each tile has all pairs of an expert and the number of the first of them; 1 if these are
    the pairs of one token, no two of one expert; 0 if pairs are grouped.
    """
    if P_PAD == 1:
        expert = tl.load(tiles.pairs + tile)
        rows = 1
        pair = tile + 0 * lane
        place = pair
    elif P_PAD > 1:
        number = tl.arange(0, P_PAD)
        ids = tl.load(tiles.pairs + number, mask=number < pairs, other=-1)
        expert = tl.load(tiles.pairs + tile)
        same = ids == expert
        rank = tl.cumsum(same.to(tl.int32), 0) - 1
        rows = tl.sum(same.to(tl.int32))
        expert = tl.where(tl.min(tl.where(same, number, P_PAD), 0) == tile, expert, -1)
        pair = tl.sum(tl.where(same[:, None] & (rank[:, None] == lane[None, :]), number[:, None], 0), 0)
        place = pair
    else:
        expert = tl.load(tiles.expert + tile)
        rows = tl.load(tiles.rows + tile, mask=expert >= 0, other=0)
        place = tl.load(tiles.first + tile, mask=expert >= 0, other=0) + lane
        pair = tl.load(tiles.pairs + place, mask=lane < rows, other=0)
    return expert, rows, place, pair


@triton.jit(do_not_specialize=["pairs"])
def _grouped_gemm_kernel(
    x, weight, inputs, tiles, out, parts, pairs, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr, MXFP4: tl.constexpr,
    ASM: tl.constexpr, P_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = SIZES.n
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    GATED: tl.constexpr = SIZES.up_offset > 0
    tile = tl.program_id(0)
    split = tl.program_id(2)
    lane = tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < N
    if GATED:
        wait_for_inputs(PDL)
    expert, rows, place, pair = _load_tile(tiles, tile, pairs, lane, P_PAD)
    if not GATED:
        wait_for_inputs(PDL)  # for the product with the gate, which follows the launch that made the tiles
    if expert < 0:
        return
    expert = expert.to(tl.int64)
    in_m = lane < rows
    source = (pair // SIZES.top_k if GATED else place).to(tl.int64)
    row = expert * (N * (2 if GATED else 1)) + n * SIZES.gate_step
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    acc_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    x_rows = x + source[None, :] * stride_x
    if MXFP4:
        acc, acc_up = _multiply_mxfp4(
            x_rows, weight, inputs.exponents, expert, row, in_n, in_m, split, acc, acc_up, SIZES, TILES,
            x.dtype.element_ty, ASM,
        )  # fmt: skip
    elif FP8.rows > 0:
        acc, acc_up = _multiply_fp8(
            x_rows, inputs.x_scale, source, pairs // SIZES.top_k if GATED else pairs, weight, inputs.weight_scale,
            expert, row, in_n, in_m, split, acc, acc_up, SIZES, TILES, FP8
        )  # fmt: skip
    else:
        acc, acc_up = _multiply(x_rows, weight, row, in_n, in_m, split, acc, acc_up, SIZES, TILES)
    let_next_start(PDL)
    mask = in_n[:, None] & in_m[None, :]
    if SPLITS > 1:
        OTHER: tl.constexpr = BLOCK_N * BLOCK_M if GATED else 0
        PART: tl.constexpr = BLOCK_N * BLOCK_M + OTHER
        entry = lane[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        shared = tile * tl.num_programs(1) + tl.program_id(1)
        arrived = store_sums(acc, acc_up, parts, shared, split, entry, OTHER, PART, SPLITS, mask)
        if arrived < SPLITS - 1:
            return
        acc, acc_up = add_splits(acc, acc_up, parts, shared, entry, OTHER, PART, SPLITS, mask)
    if inputs.bias is not None:
        acc += tl.load(inputs.bias + row, mask=in_n, other=0.0).to(tl.float32)[:, None]
    if GATED:
        if inputs.bias is not None:
            acc_up += tl.load(inputs.bias + row + SIZES.up_offset, mask=in_n, other=0.0).to(tl.float32)[:, None]
        acc = _activate(acc, acc_up, ACTIVATION)
        target = place
    else:
        acc *= tl.load(inputs.pair_weight + pair, mask=in_m, other=0.0)[None, :]
        target = pair
    if FP8.rows > 0 and GATED:
        acc = tl.where(mask, acc, 0.0)
        scale = fp8_scale(tl.max(tl.abs(acc), 0))
        tl.store(inputs.out_scale + tl.program_id(1) * pairs + place, scale, mask=in_m)
        result = to_fp8(acc, scale[None, :])
    else:
        result = acc.to(out.dtype.element_ty)
    tl.store(out + target.to(tl.int64)[None, :] * N + n[:, None], result, mask=mask)


@cache
def _multiplies_bf16_pairs(device: torch.device) -> bool:
    """Returns True if a GPU has the instruction that multiplies two bf16 values (compute capability 9.0)."""
    gpu = gpu_of(device)
    return gpu is not None and torch.cuda.get_device_capability(gpu) >= (9, 0)


def grouped_tiling(pairs: int, experts: int, x: Tensor, weight: ExpertWeights, *, gated: bool) -> GroupedTiling:
    """Returns the tile sizes of a product of `pairs` pairs, the fastest of a sweep on an H200.

    x, weight: as in `grouped_gemm`. block_m does not depend on `gated`: both products of a layer share the tiles.
    """
    rows = cdiv(pairs, experts)
    if isinstance(weight, Fp8ExpertWeight):
        block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    else:  # loads are uneven: a tile of many rows costs less than the weight of a busy expert once more
        block_m = 16 if rows <= 4 else 32 if rows <= 16 else 64 if rows <= 64 else 128
    if isinstance(weight, Fp8ExpertWeight):
        # The gated product's block_n is the group of the other one's x, which bounds its block_k.
        tiling = GroupedTiling(block_m, 128, 128, 3 if gated and rows <= 32 else 4, 8 if gated else 4)
    elif isinstance(weight, Mxfp4Weight) and rows <= 32:
        tiling = GroupedTiling(block_m, 64 if gated or pairs <= 16 else 128, 128, 3, 4)
    elif rows <= 32:
        tiling = GroupedTiling(block_m, 64, max(64, 256 // x.element_size()), 4, 4)
    else:
        tiling = GroupedTiling(block_m, 128, max(64, 128 // x.element_size()), 4, 8)
    if isinstance(weight, Tensor):
        return tiling
    _, outputs, columns = weight.shape
    programs = min(pairs, experts) * cdiv(outputs // (2 if gated else 1), tiling.block_n)
    return tiling._replace(splits=_splits(programs, columns // tiling.block_k, processors(x.device)))


def _splits(programs: int, steps: int, processors: int) -> int:
    """Returns the programs that share K: enough for four on each multiprocessor, of at least four steps each.

    In 16 bits none share: joining the sums takes longer than it gains (one row: 31 instead of 25 µs a layer).
    """
    splits = 1
    while programs * splits < 4 * processors and steps // (2 * splits) >= 4:
        splits *= 2
    return splits


def grouped_gemm(
    x: Tensor | Fp8Rows,
    weight: ExpertWeights,
    bias: Tensor | None,
    tiles: PairTiles,
    *,
    top_k: int,
    tiling: GroupedTiling,
    activation: Activation | None = None,
    interleaved: bool = False,
    pair_weight: Tensor | None = None,
) -> Tensor | Fp8Rows:
    """Multiplies the rows of all pairs with their experts' weights [E, N, K]; bias [E, N].

    With an activation: x [M, K]; returns activations [P, N / 2] in the order of grouped pairs, or of all pairs if none
    are; in 8 bits with a scale for each tile of block_n columns if x is. interleaved: gate and up alternate in the rows
    of the weight; else all gates come first.
    Without: x [P, K] in that order; returns results [P, N] times pair_weight [P], in the order of the pairs.
    """
    values, exponents, scale = weight, None, None
    if isinstance(weight, Mxfp4Weight):
        values, exponents = weight
    elif isinstance(weight, Fp8ExpertWeight):
        values, scale = weight.values, weight.scale
    assert isinstance(values, Tensor) and values.is_contiguous() and isinstance(x, Fp8Rows) == (scale is not None)
    rows, x_scale, dtype = (x.values, x.scale, x.dtype) if isinstance(x, Fp8Rows) else (x, None, x.dtype)
    fp8 = Fp8Blocks(0, 0, 0)
    if isinstance(x, Fp8Rows) and isinstance(weight, Fp8ExpertWeight):
        fp8 = Fp8Blocks(*weight.block, x.group)
        tiling = tiling._replace(block_k=min(tiling.block_k, *(power_of_2(n) for n in (x.group, weight.block[1]))))
    pairs, k = tiles.pairs.shape[0], rows.shape[1]
    n = weight.shape[1] // 2 if activation else weight.shape[1]
    assert rows.stride(1) == 1 and (values.shape[2] == k if exponents is None else values.shape[1] == cdiv(k, 128))
    eight_bits = fp8.rows > 0 and activation is not None
    out = torch.empty(pairs, n, dtype=torch.float8_e4m3fn if eight_bits else dtype, device=rows.device)
    blocks = cdiv(n, tiling.block_n)
    out_scale = torch.empty(blocks, pairs, dtype=torch.float32, device=rows.device) if eight_bits else None
    up_offset = 0 if activation is None else 1 if interleaved else n
    count = pairs if tiles.expert is None else tiles.expert.shape[0]
    _grouped_gemm_kernel[(count, blocks, tiling.splits)](
        rows, values, GroupedInputs(exponents, scale, x_scale, bias, pair_weight, out_scale), tiles, out,
        _split_sums(rows, tiling, count * blocks, gated=activation is not None), pairs, rows.stride(0),
        SIZES=GroupedSizes(n, k, top_k, 2 if interleaved and activation else 1, up_offset), TILES=tiling,
        ACTIVATION=activation or Activation(False), FP8=fp8, MXFP4=exponents is not None,
        ASM=dtype == torch.bfloat16 and _multiplies_bf16_pairs(rows.device),
        P_PAD=0 if tiles.expert is not None else 1 if pairs == top_k else power_of_2(pairs), num_warps=tiling.warps,
        num_stages=tiling.stages,
        **launch_options(rows),
    )  # fmt: skip
    return out if out_scale is None else Fp8Rows(out, out_scale, tiling.block_n, dtype)


def _split_sums(like: Tensor, tiling: GroupedTiling, results: int, *, gated: bool) -> SplitSums:
    """Returns memory for the sums of the programs that share K. results: tiles times blocks of outputs."""
    if tiling.splits == 1:
        return SplitSums(None, None)
    part = tiling.block_n * tiling.block_m * (2 if gated else 1)
    sums = torch.empty(results * tiling.splits * part, dtype=torch.float32, device=like.device)
    return SplitSums(sums, arrivals(like, results))
