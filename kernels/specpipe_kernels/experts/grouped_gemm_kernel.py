"""Kernels of `grouped_gemm`: products of tiles of pairs with the weights of their experts."""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.experts.mxfp4_tile import SUM_FACTOR, mxfp4_quarter
from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, store_result, store_sums
from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs


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
    """Returns the expert of a tile, -1 if there is none, its number of pairs, and their numbers [BLOCK_M].

    A tile has all pairs of an expert and the number of the first of them. P_PAD: pairs, at most; 1 if these are the
    pairs of one token, no two of one expert.
    """
    expert = tl.load(tiles.pairs + tile)
    if P_PAD == 1:
        rows = 1
        pair = tile + 0 * lane
    else:
        number = tl.arange(0, P_PAD)
        ids = tl.load(tiles.pairs + number, mask=number < pairs, other=-1)
        same = ids == expert
        rank = tl.cumsum(same.to(tl.int32), 0) - 1
        rows = tl.sum(same.to(tl.int32))
        expert = tl.where(tl.min(tl.where(same, number, P_PAD), 0) == tile, expert, -1)
        pair = tl.sum(tl.where(same[:, None] & (rank[:, None] == lane[None, :]), number[:, None], 0), 0)
    return expert, rows, pair


@triton.jit
def _load_group(tiles, tile):
    """Returns the expert of a tile of grouped pairs, its number of pairs, 0 if it is unused, and the first's place."""
    expert = tl.load(tiles.expert + tile)
    rows = tl.load(tiles.rows + tile, mask=expert >= 0, other=0)
    return expert, rows, tl.load(tiles.first + tile, mask=expert >= 0, other=0)


@triton.jit
def _sums_of_tile(
    x, weight, inputs, expert, pair, place, n, in_n, in_m, split, pairs, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, FP8: tl.constexpr, MXFP4: tl.constexpr, ASM: tl.constexpr,
    BLOCK_M: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Returns the rows of the weight [BLOCK_N], the sums over a split of K [BLOCK_N, BLOCK_M], and with a gate those of
    the up projection. Then lets the next kernel start.

    pair, place [BLOCK_M]: numbers of the pairs, and places of their activations.
    """
    GATED: tl.constexpr = SIZES.up_offset > 0
    BLOCK_N: tl.constexpr = TILES.block_n
    source = (pair // SIZES.top_k if GATED else place).to(tl.int64)
    row = expert * (SIZES.n * (2 if GATED else 1)) + n * SIZES.gate_step
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
            x_rows, inputs.x_scale, source, pairs // SIZES.top_k if GATED else pairs, weight,
            inputs.weight_scale, expert, row, in_n, in_m, split, acc, acc_up, SIZES, TILES, FP8
        )  # fmt: skip
    else:
        acc, acc_up = _multiply(x_rows, weight, row, in_n, in_m, split, acc, acc_up, SIZES, TILES)
    let_next_start(PDL)
    return row, acc, acc_up


@triton.jit
def _store_tile(
    acc, acc_up, inputs, outputs, pairs, pair, place, row, n, in_n, in_m,
    SIZES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Stores the activations, or the weighted results, of a tile's sums."""
    GATED: tl.constexpr = SIZES.up_offset > 0
    mask = in_n[:, None] & in_m[None, :]
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
    tl.store(outputs.out + target.to(tl.int64)[None, :] * SIZES.n + n[:, None], result, mask=mask)


@triton.jit
def _finish_tile(
    acc, acc_up, inputs, outputs, parts, tile, split, pairs, pair, place, row, lane, n, in_n, in_m,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Stores a tile's results; of programs that share K, the last one to arrive stores those of their sums."""
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    if SPLITS > 1:
        OTHER: tl.constexpr = BLOCK_N * TILES.block_m if SIZES.up_offset > 0 else 0
        PART: tl.constexpr = BLOCK_N * TILES.block_m + OTHER
        mask = in_n[:, None] & in_m[None, :]
        entry = lane[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        shared = tile * tl.num_programs(1) + tl.program_id(1)
        if store_sums(acc, acc_up, parts, shared, split, entry, OTHER, PART, SPLITS, mask) == SPLITS - 1:
            acc, acc_up = add_splits(acc, acc_up, parts, shared, entry, OTHER, PART, SPLITS, mask)
            _store_tile(acc, acc_up, inputs, outputs, pairs, pair, place, row, n, in_n, in_m, SIZES, ACTIVATION, FP8)
    else:
        _store_tile(acc, acc_up, inputs, outputs, pairs, pair, place, row, n, in_n, in_m, SIZES, ACTIVATION, FP8)


@triton.jit
def _grouped_tile(
    x, weight, inputs, tiles, outputs, parts, expert, rows, first, pairs, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr, MXFP4: tl.constexpr,
    ASM: tl.constexpr, ABOVE: tl.constexpr, BLOCK_M: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Computes the results of a tile of grouped pairs if it has more than ABOVE and at most BLOCK_M."""
    BLOCK_N: tl.constexpr = TILES.block_n
    if (rows > ABOVE) & (rows <= BLOCK_M):
        split = tl.program_id(2)
        lane = tl.arange(0, BLOCK_M)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        in_n = n < SIZES.n
        in_m = lane < rows
        place = first + lane
        pair = tl.load(tiles.pairs + place, mask=in_m, other=0)
        row, acc, acc_up = _sums_of_tile(
            x, weight, inputs, expert, pair, place, n, in_n, in_m, split, pairs, stride_x, SIZES, TILES, FP8, MXFP4,
            ASM, BLOCK_M, PDL,
        )  # fmt: skip
        _finish_tile(
            acc, acc_up, inputs, outputs, parts, tl.program_id(0), split, pairs, pair, place, row, lane, n, in_n, in_m,
            SIZES, TILES, ACTIVATION, FP8,
        )  # fmt: skip


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
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Products of grouped pairs. A program computes the smallest tile that its pairs fit into."""
    LEAST: tl.constexpr = TILES.least_m
    MOST: tl.constexpr = TILES.block_m
    if SIZES.up_offset > 0:
        wait_for_inputs(PDL)
    expert, rows, first = _load_group(tiles, tl.program_id(0))
    if SIZES.up_offset == 0:
        wait_for_inputs(PDL)  # for the product with the gate, which follows the launch that made the tiles
    expert = expert.to(tl.int64)
    _grouped_tile(
        x, weight, inputs, tiles, outputs, parts, expert, rows, first, pairs, stride_x, SIZES, TILES, ACTIVATION, FP8,
        MXFP4, ASM, 0, LEAST, PDL,
    )  # fmt: skip
    if LEAST < MOST:
        _grouped_tile(
            x, weight, inputs, tiles, outputs, parts, expert, rows, first, pairs, stride_x, SIZES, TILES, ACTIVATION,
            FP8, MXFP4, ASM, LEAST, 2 * LEAST, PDL,
        )  # fmt: skip
    if 2 * LEAST < MOST:
        _grouped_tile(
            x, weight, inputs, tiles, outputs, parts, expert, rows, first, pairs, stride_x, SIZES, TILES, ACTIVATION,
            FP8, MXFP4, ASM, 2 * LEAST, 4 * LEAST, PDL,
        )  # fmt: skip
    if 4 * LEAST < MOST:
        _grouped_tile(
            x, weight, inputs, tiles, outputs, parts, expert, rows, first, pairs, stride_x, SIZES, TILES, ACTIVATION,
            FP8, MXFP4, ASM, 4 * LEAST, 8 * LEAST, PDL,
        )  # fmt: skip


@triton.jit(do_not_specialize=["pairs"])
def _ungrouped_gemm_kernel(
    x, weight, inputs, tiles, outputs, parts, pairs, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, FP8: tl.constexpr, MXFP4: tl.constexpr,
    ASM: tl.constexpr, P_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Products of few pairs, which each program groups itself."""
    BLOCK_M: tl.constexpr = TILES.block_m
    GATED: tl.constexpr = SIZES.up_offset > 0
    tile = tl.program_id(0)
    split = tl.program_id(2)
    lane = tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * TILES.block_n + tl.arange(0, TILES.block_n)
    in_n = n < SIZES.n
    norm_scale = 1.0
    if inputs.norm_weight is not None:
        norm_scale = tl.load(inputs.norm_weight + n, mask=in_n, other=0.0)
    if GATED:
        wait_for_inputs(PDL)
    expert, rows, pair = _load_tile(tiles, tile, pairs, lane, P_PAD)
    if not GATED:
        wait_for_inputs(PDL)  # for the product with the gate, which follows the launch that made the ids
    if inputs.residual is not None:  # a program without pairs arrives all the same
        split = tl.where(expert < 0, TILES.splits, split)
        rows = tl.where(expert < 0, 0, rows)
        expert = tl.maximum(expert, 0)
    elif expert < 0:
        return
    expert = expert.to(tl.int64)
    in_m = lane < rows
    row, acc, acc_up = _sums_of_tile(
        x, weight, inputs, expert, pair, pair, n, in_n, in_m, split, pairs, stride_x, SIZES, TILES, FP8, MXFP4, ASM,
        BLOCK_M, PDL,
    )  # fmt: skip
    if inputs.residual is not None:
        _add_pairs(
            acc, inputs, outputs, parts, expert, split, pairs, pair, row, n, in_n, in_m, norm_scale, SIZES, TILES, P_PAD
        )
    else:
        _finish_tile(
            acc, acc_up, inputs, outputs, parts, tile, split, pairs, pair, pair, row, lane, n, in_n, in_m, SIZES,
            TILES, ACTIVATION, FP8,
        )  # fmt: skip
