"""Products of tokens with the weights of their experts, for all experts in one launch.

A program multiplies one tile of pairs (a token and one of its experts, grouped by expert) with BLOCK_N rows of that
expert's weight. Weights are in 16 or 32 bits, in mxfp4, which is converted in registers, or in 8 bits, which are
multiplied with activations in 8 bits. Where there are few programs, several share K.

The gated product reads the rows of its tokens from x and writes activations in the order of the sorted pairs; the
second product reads them in that order and writes weighted results in the order of the pairs. Of few tokens, the last
program to arrive at a block of outputs adds the residual and the results of each token's pairs.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.experts.expert_args import Fp8Blocks, GroupedInputs, GroupedSizes, GroupedTiling, PairTiles
from specpipe_kernels.experts.mxfp4_tile import SUM_FACTOR, mxfp4_quarter
from specpipe_kernels.layers.layer_args import GemmOutputs, SplitSums
from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, store_result, store_sums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Activation, ExpertWeights, Fp8ExpertWeight, Fp8Rows, Mxfp4Weight, Normed


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


@triton.jit
def _add_pairs(
    acc, inputs, outputs, parts, expert, split, pairs, pair, row, n, in_n, in_m, norm_scale,
    SIZES: tl.constexpr, TILES: tl.constexpr, P_PAD: tl.constexpr,
):  # fmt: skip
    """Stores a program's results; the last one of a block of outputs adds those of each token to the residual."""
    TOP_K: tl.constexpr = SIZES.top_k
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    PART: tl.constexpr = BLOCK_N * (TOP_K if P_PAD == 1 else P_PAD)
    block = tl.program_id(1)
    lane_n = tl.arange(0, BLOCK_N)[:, None]
    if inputs.bias is not None:
        bias = tl.load(inputs.bias + row, mask=in_n, other=0.0).to(tl.float32)
        acc += tl.where(split == 0, bias, 0.0)[:, None]
    acc *= tl.load(inputs.pair_weight + pair, mask=in_m, other=0.0)[None, :]
    entry = pair[None, :] * BLOCK_N + lane_n
    last = tl.num_programs(0) * SPLITS - 1
    if store_sums(acc, acc, parts, block, split, entry, 0, PART, SPLITS, in_n[:, None] & in_m[None, :]) < last:
        return
    tl.store(parts.arrivals + block, 0)
    token = tl.arange(0, TILES.block_m)
    tokens = pairs // TOP_K
    in_tokens = token < tokens
    mask = in_n[:, None] & in_tokens[None, :]
    at = inputs.residual + token[None, :].to(tl.int64) * inputs.residual_stride + n[:, None]
    h = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(TOP_K):
        for other in tl.static_range(SPLITS):
            place = (block * SPLITS + other) * PART + (token[None, :] * TOP_K + i) * BLOCK_N + lane_n
            h += tl.load(parts.sums + place, mask=mask, cache_modifier=".cg")
    store_result(h, outputs, norm_scale, block, token, tokens, n, mask, in_tokens, SIZES.n)


@triton.jit(do_not_specialize=["pairs"])
def _grouped_gemm_kernel(
    x, weight, inputs, tiles, outputs, parts, pairs, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr, MXFP4: tl.constexpr,
    ASM: tl.constexpr, P_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = SIZES.n
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    GATED: tl.constexpr = SIZES.up_offset > 0
    ADD: tl.constexpr = inputs.residual is not None
    tile = tl.program_id(0)
    split = tl.program_id(2)
    lane = tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < N
    norm_scale = 1.0
    if inputs.norm_weight is not None:
        norm_scale = tl.load(inputs.norm_weight + n, mask=in_n, other=0.0)
    if GATED:
        wait_for_inputs(PDL)
    expert, rows, place, pair = _load_tile(tiles, tile, pairs, lane, P_PAD)
    if not GATED:
        wait_for_inputs(PDL)  # for the product with the gate, which follows the launch that made the tiles
    if ADD:  # a program without pairs arrives all the same
        split = tl.where(expert < 0, SPLITS, split)
        rows = tl.where(expert < 0, 0, rows)
        expert = tl.maximum(expert, 0)
    elif expert < 0:
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
    if ADD:
        _add_pairs(
            acc, inputs, outputs, parts, expert, split, pairs, pair, row, n, in_n, in_m, norm_scale, SIZES, TILES, P_PAD
        )
        return
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
        tl.store(outputs.scale + tl.program_id(1) * pairs + place, scale, mask=in_m)
        result = to_fp8(acc, scale[None, :])
    else:
        result = acc.to(outputs.out.dtype.element_ty)
    tl.store(outputs.out + target.to(tl.int64)[None, :] * N + n[:, None], result, mask=mask)


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
    elif isinstance(weight, Mxfp4Weight) and pairs <= 64:  # without the waits of the asynchronous matrix unit
        block_m = 8
    else:  # loads are uneven: a tile of many rows costs less than the weight of a busy expert once more
        block_m = 16 if rows <= 4 else 32 if rows <= 16 else 64 if rows <= 64 else 128
    if isinstance(weight, Fp8ExpertWeight):
        # The gated product's block_n is the group of the other one's x, which bounds its block_k.
        tiling = GroupedTiling(block_m, 128, 128, 3 if gated and rows <= 32 else 4, 8 if gated else 4)
    elif isinstance(weight, Mxfp4Weight) and rows <= 32:
        narrow = gated or pairs <= 16 or (pairs <= 64 and experts <= pairs)  # else there are programs enough
        tiling = GroupedTiling(block_m, 64 if narrow else 128, 128, 3, 4)
    elif rows <= 32:
        tiling = GroupedTiling(block_m, 64, max(64, 256 // x.element_size()), 4, 4)
    else:
        tiling = GroupedTiling(block_m, 128, max(64, 128 // x.element_size()), 4, 8)
    if isinstance(weight, Tensor):
        return tiling
    _, outputs, columns = weight.shape
    programs = min(pairs, experts) * cdiv(outputs // (2 if gated else 1), tiling.block_n)
    least = 2 if isinstance(weight, Mxfp4Weight) else 4
    return tiling._replace(splits=_splits(programs, columns // tiling.block_k, least, processors(x.device)))


def _splits(programs: int, steps: int, least: int, processors: int) -> int:
    """Returns the programs that share K: enough for four on each multiprocessor, of at least `least` steps each.

    In 16 bits none share: joining the sums takes longer than it gains (one row: 31 instead of 25 µs a layer).
    """
    splits = 1
    while programs * splits < 4 * processors and steps // (2 * splits) >= least:
        splits *= 2
    return splits


class _Operands(NamedTuple):
    """x and weight of a product, and what belongs to them; None where there is none."""

    x: Tensor
    x_scale: Tensor | None
    dtype: torch.dtype
    """Of results in 16 or 32 bits."""
    weight: Tensor
    exponents: Tensor | None
    weight_scale: Tensor | None
    fp8: Fp8Blocks
    block_k: int


def _operands(x: Tensor | Fp8Rows, weight: ExpertWeights, tiling: GroupedTiling) -> _Operands:
    """Returns the operands of a product in its number formats."""
    if isinstance(x, Fp8Rows):
        assert isinstance(weight, Fp8ExpertWeight) and weight.values.is_contiguous()
        block_k = min(tiling.block_k, *(power_of_2(n) for n in (x.group, weight.block[1])))
        blocks = Fp8Blocks(*weight.block, x.group)
        return _Operands(x.values, x.scale, x.dtype, weight.values, None, weight.scale, blocks, block_k)
    values, exponents = weight if isinstance(weight, Mxfp4Weight) else (weight, None)
    assert isinstance(values, Tensor) and values.is_contiguous()
    return _Operands(x, None, x.dtype, values, exponents, None, Fp8Blocks(0, 0, 0), tiling.block_k)


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
    given = _operands(x, weight, tiling)
    pairs = tiles.pairs.shape[0]
    n = weight.shape[1] // 2 if activation else weight.shape[1]
    eight_bits = given.x_scale is not None and activation is not None
    out = given.x.new_empty(pairs, n, dtype=torch.float8_e4m3fn if eight_bits else given.dtype)
    scale = given.x.new_empty(cdiv(n, tiling.block_n), pairs, dtype=torch.float32) if eight_bits else None
    up_offset = 0 if activation is None else 1 if interleaved else n
    sizes = GroupedSizes(n, given.x.shape[1], top_k, 2 if interleaved and activation else 1, up_offset)
    count = pairs if tiles.expert is None else tiles.expert.shape[0]
    parts = _split_sums(out, tiling, count * cdiv(n, tiling.block_n), gated=activation is not None)
    inputs = GroupedInputs(given.exponents, given.weight_scale, given.x_scale, bias, pair_weight)
    _launch(given, inputs, tiles, GemmOutputs(out, None, scale, None), parts, sizes, tiling, activation)
    return out if scale is None else Fp8Rows(out, scale, tiling.block_n, given.dtype)


def grouped_gemm_residual(
    x: Tensor | Fp8Rows,
    weight: ExpertWeights,
    bias: Tensor | None,
    tiles: PairTiles,
    *,
    top_k: int,
    tiling: GroupedTiling,
    pair_weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    fp8: bool = False,
) -> tuple[Tensor, Normed | Fp8Rows]:
    """Returns h = residual [M, N] + the results of `grouped_gemm` of each token's pairs, and the pending RMS norm of h.

    tiles: of ungrouped pairs. norm_weight [N]; without it the second result is h. fp8: the norm is in 8 bits.
    """
    assert tiles.expert is None and residual.stride(1) == 1
    given = _operands(x, weight, tiling)
    pairs, (tokens, n) = tiles.pairs.shape[0], residual.shape
    blocks, fp8 = cdiv(n, tiling.block_n), fp8 and norm_weight is not None
    h, scaled, scale, squares = given.x.new_empty(tokens, n, dtype=given.dtype), None, None, None
    if norm_weight is not None:
        scaled = torch.empty_like(h, dtype=torch.float8_e4m3fn if fp8 else h.dtype)
        squares = h.new_empty(blocks, tokens, dtype=torch.float32)
        scale = torch.empty_like(squares) if fp8 else None
    part = tiling.block_n * (top_k if pairs == top_k else power_of_2(pairs))
    sums = h.new_empty(blocks * tiling.splits * part, dtype=torch.float32)
    inputs = GroupedInputs(
        given.exponents, given.weight_scale, given.x_scale, bias, pair_weight, residual, residual.stride(0), norm_weight
    )
    sizes = GroupedSizes(n, given.x.shape[1], top_k, 1, 0)
    outputs = GemmOutputs(h, scaled, scale, squares)
    _launch(given, inputs, tiles, outputs, SplitSums(sums, arrivals(h, blocks)), sizes, tiling, None)
    if scaled is not None and scale is not None:
        return h, Fp8Rows(scaled, scale, tiling.block_n, given.dtype, squares, eps)
    return h, Normed(h if scaled is None else scaled, squares, eps)


def _launch(
    given: _Operands, inputs: GroupedInputs, tiles: PairTiles, outputs: GemmOutputs, parts: SplitSums,
    sizes: GroupedSizes, tiling: GroupedTiling, activation: Activation | None,
) -> None:  # fmt: skip
    """Launches a product."""
    pairs, rows = tiles.pairs.shape[0], given.x
    columns = given.weight.shape[2] if given.exponents is None else sizes.k
    assert rows.stride(1) == 1 and columns == sizes.k
    count = pairs if tiles.expert is None else tiles.expert.shape[0]
    _grouped_gemm_kernel[(count, cdiv(sizes.n, tiling.block_n), tiling.splits)](
        rows, given.weight, inputs, tiles, outputs, parts, pairs, rows.stride(0), SIZES=sizes,
        TILES=tiling._replace(block_k=given.block_k), ACTIVATION=activation or Activation(False), FP8=given.fp8,
        MXFP4=given.exponents is not None, ASM=given.dtype == torch.bfloat16 and _multiplies_bf16_pairs(rows.device),
        P_PAD=0 if tiles.expert is not None else 1 if pairs == sizes.top_k else power_of_2(pairs),
        num_warps=tiling.warps, num_stages=tiling.stages, **launch_options(rows),
    )  # fmt: skip


def _split_sums(like: Tensor, tiling: GroupedTiling, results: int, *, gated: bool) -> SplitSums:
    """Returns memory for the sums of the programs that share K. results: tiles times blocks of outputs."""
    if tiling.splits == 1:
        return SplitSums(None, None)
    part = tiling.block_n * tiling.block_m * (2 if gated else 1)
    sums = torch.empty(results * tiling.splits * part, dtype=torch.float32, device=like.device)
    return SplitSums(sums, arrivals(like, results))
