"""Products of tokens with the weights of their experts, for all experts in one launch.

A program multiplies one tile of pairs (a token and one of its experts, grouped by expert) with BLOCK_N rows of that
expert's weight. Weights are in 16 or 32 bits, or in mxfp4, which is converted in registers.

The gated product reads the rows of its tokens from x and writes activations in the order of the sorted pairs; the
second product reads them in that order and writes weighted results in the order of the pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.experts.expert_args import GroupedInputs, GroupedSizes, GroupedTiling, PairTiles
from specpipe_kernels.experts.mxfp4_tile import mxfp4_quarter
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.types import Activation, ExpertWeights, Mxfp4Weight


@triton.jit
def _multiply_mxfp4(
    x_rows, words, exponents, row, in_n, in_m, acc, acc_up,
    SIZES: tl.constexpr, TILES: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns the sums over K of mxfp4 weights, and with a gate those of the up projection.

    A step is a block of 128 columns: 32 words and 4 bytes of exponents in each row of the weight.
    """
    BLOCKS: tl.constexpr = (SIZES.k + 127) // 128
    GATED: tl.constexpr = SIZES.up_offset > 0
    lanes = tl.arange(0, 32)
    words_at = words + row[:, None] * (BLOCKS * 32) + lanes[None, :]
    exponents_at = exponents + row * BLOCKS
    for block in tl.range(0, BLOCKS, num_stages=TILES.stages):
        tile = tl.load(words_at + block * 32, mask=in_n[:, None], other=0)
        tile_exponents = tl.load(exponents_at + block, mask=in_n, other=0)
        if GATED:
            tile_up = tl.load(words_at + SIZES.up_offset * (BLOCKS * 32) + block * 32, mask=in_n[:, None], other=0)
            up_exponents = tl.load(exponents_at + SIZES.up_offset * BLOCKS + block, mask=in_n, other=0)
        for quarter in tl.static_range(4):
            column = block * 128 + quarter * 32 + lanes
            x_tile = tl.load(x_rows + column[:, None], mask=in_m[None, :] & (column[:, None] < SIZES.k), other=0.0)
            acc = tl.dot(mxfp4_quarter(tile, tile_exponents, quarter, DTYPE, ASM), x_tile, acc)
            if GATED:
                acc_up = tl.dot(mxfp4_quarter(tile_up, up_exponents, quarter, DTYPE, ASM), x_tile, acc_up)
    return acc, acc_up


@triton.jit
def _multiply(x_rows, weight, row, in_n, in_m, acc, acc_up, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the sums over K, and with a gate those of the up projection."""
    K: tl.constexpr = SIZES.k
    GATED: tl.constexpr = SIZES.up_offset > 0
    for step in tl.range(0, tl.cdiv(K, TILES.block_k), num_stages=TILES.stages):
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
def _activate(gate, up, ACTIVATION: tl.constexpr):
    """Returns the gated activation of fp32 values."""
    if ACTIVATION.clamped:
        gate = tl.minimum(gate, ACTIVATION.limit)
        up = tl.minimum(tl.maximum(up, -ACTIVATION.limit), ACTIVATION.limit) + 1.0
    return gate / (1.0 + tl.exp(-ACTIVATION.alpha * gate)) * up


@triton.jit
def _grouped_gemm_kernel(
    x, weight, inputs, tiles, out, stride_x,
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, MXFP4: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = SIZES.n
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    GATED: tl.constexpr = SIZES.up_offset > 0
    tile = tl.program_id(0)
    lane = tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < N
    wait_for_inputs(PDL)
    expert = tl.load(tiles.expert + tile)
    if expert < 0:
        return
    expert = expert.to(tl.int64)
    place = tl.load(tiles.first + tile) + lane
    in_m = lane < tl.load(tiles.rows + tile)
    pair = tl.load(tiles.pairs + place, mask=in_m, other=0)
    source = (pair // SIZES.top_k if GATED else place).to(tl.int64)
    row = expert * (N * (2 if GATED else 1)) + n * SIZES.gate_step
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    acc_up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    x_rows = x + source[None, :] * stride_x
    if MXFP4:
        acc, acc_up = _multiply_mxfp4(
            x_rows, weight, inputs.exponents, row, in_n, in_m, acc, acc_up, SIZES, TILES, x.dtype.element_ty, ASM
        )
    else:
        acc, acc_up = _multiply(x_rows, weight, row, in_n, in_m, acc, acc_up, SIZES, TILES)
    let_next_start(PDL)
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
    tl.store(out + target.to(tl.int64)[None, :] * N + n[:, None], acc.to(out.dtype.element_ty), mask=mask)


def grouped_tiling(pairs: int, experts: int, n: int, *, itemsize: int) -> GroupedTiling:
    """Returns the tile sizes of a grouped product with `pairs` pairs.

    itemsize: bytes of an element of x.
    """
    rows = cdiv(pairs, experts)
    if rows <= 16:
        return GroupedTiling(16, 64, 256 // itemsize, 4, 4)
    if rows <= 32:
        return GroupedTiling(32, 64, 256 // itemsize, 4, 4)
    if rows <= 64:
        return GroupedTiling(64, 128, 128 // itemsize, 4, 8)
    return GroupedTiling(128, 128, 128 // itemsize, 4, 8)


def grouped_gemm(
    x: Tensor,
    weight: ExpertWeights,
    bias: Tensor | None,
    tiles: PairTiles,
    *,
    top_k: int,
    tiling: GroupedTiling,
    activation: Activation | None = None,
    interleaved: bool = False,
    pair_weight: Tensor | None = None,
) -> Tensor:
    """Multiplies the rows of all pairs with their experts' weights [E, N, K]; bias [E, N].

    With an activation: x [M, K]; returns activations [P, N / 2] in the order of `tiles.pairs`. interleaved: gate and up
    alternate in the rows of the weight; else all gates come first.
    Without: x [P, K] in that order; returns results [P, N] times pair_weight [P], in the order of the pairs.
    """
    mxfp4 = isinstance(weight, Mxfp4Weight)
    values, exponents = (weight.words, weight.exponents) if isinstance(weight, Mxfp4Weight) else (weight, None)
    rows, k = values.shape[1], x.shape[1]
    n = rows // 2 if activation else rows
    assert values.is_contiguous() and x.stride(1) == 1 and (mxfp4 or values.shape[2] == k)
    assert not mxfp4 or (values.shape[2] == 32 * cdiv(k, 128) and x.element_size() == 2)
    out = torch.empty(tiles.pairs.shape[0], n, dtype=x.dtype, device=x.device)
    up_offset = 0 if activation is None else 1 if interleaved else n
    _grouped_gemm_kernel[(tiles.expert.shape[0], cdiv(n, tiling.block_n))](
        x, values, GroupedInputs(exponents, bias, pair_weight), tiles, out, x.stride(0),
        SIZES=GroupedSizes(n, k, top_k, 2 if interleaved and activation else 1, up_offset), TILES=tiling,
        ACTIVATION=activation or Activation(False), MXFP4=mxfp4,
        ASM=x.dtype == torch.bfloat16 and not x.is_cpu, num_warps=tiling.warps, num_stages=tiling.stages,
        **launch_options(x),
    )  # fmt: skip
    return out
