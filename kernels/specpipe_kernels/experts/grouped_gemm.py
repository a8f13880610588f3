"""Products of tokens with the weights of their experts, for all experts in one launch.

A program multiplies one tile of pairs (a token and one of its experts, grouped by expert) with BLOCK_N rows of that
expert's weight. Weights are in 16 or 32 bits, or in mxfp4 (OCP Microscaling Formats 1.0: blocks of 32 values of 4 bits
with one exponent), which are converted in registers, exactly.

The gated product reads the rows of its tokens from x and writes activations in the order of the sorted pairs; the
second product reads them in that order and writes weighted results in the order of the pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.experts.expert_args import GroupedInputs, GroupedSizes, GroupedTiling, PairTiles
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.types import Activation, ExpertWeights, Mxfp4Weight

MXFP4_BLOCK = 32
"""Values that share an exponent."""


@triton.jit
def _decode_mxfp4(nibbles, scale, TYPE: tl.constexpr):
    """Returns values [N, BLOCKS, 16] in TYPE (bf16 or fp16) of 4-bit codes (int16), times 2^(scale - 127).

    scale: [N, BLOCKS, 1] in TYPE. Sign, exponent and mantissa go to their places in the wider format, whose exponent
    is then too small by a constant.
    """
    SHIFT: tl.constexpr = 6 if tl.bfloat16 == TYPE else 9
    UNIT: tl.constexpr = 2.0**126 if tl.bfloat16 == TYPE else 2.0**14
    bits = ((nibbles & 8) << 12) | ((nibbles & 7) << SHIFT)
    return (bits.to(TYPE, bitcast=True) * tl.full([1], UNIT, TYPE)) * scale


@triton.jit
def _load_mxfp4(weight, exponents, row, in_n, step, BLOCK_K: tl.constexpr, K: tl.constexpr):
    """Returns a tile's bytes [BLOCK_N, BLOCK_K / 2] and exponents [BLOCK_N, BLOCK_K / 32]."""
    byte = step * (BLOCK_K // 2) + tl.arange(0, BLOCK_K // 2)
    mask = in_n[:, None] & (byte[None, :] < K // 2)
    packed = tl.load(weight + row[:, None] * (K // 2) + byte[None, :], mask=mask, other=0)
    block = step * (BLOCK_K // 32) + tl.arange(0, BLOCK_K // 32)
    mask = in_n[:, None] & (block[None, :] < K // 32)
    return packed, tl.load(exponents + row[:, None] * (K // 32) + block[None, :], mask=mask, other=127)


@triton.jit
def _add_mxfp4(packed, exponent, x_even, x_odd, acc, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Adds the product of a tile of mxfp4 weights with even and odd columns of x [BLOCK_K / 2, BLOCK_M]."""
    TYPE: tl.constexpr = x_even.dtype
    scale = tl.exp2(exponent.to(tl.float32) - 127.0).to(TYPE)[:, :, None]
    codes = packed.to(tl.int16).reshape(BLOCK_N, BLOCK_K // 32, 16)
    low = _decode_mxfp4(codes & 15, scale, TYPE).reshape(BLOCK_N, BLOCK_K // 2)
    high = _decode_mxfp4((codes >> 4) & 15, scale, TYPE).reshape(BLOCK_N, BLOCK_K // 2)
    return tl.dot(high, x_odd, tl.dot(low, x_even, acc))


@triton.jit
def _multiply_mxfp4(x_rows, weight, exponents, row, in_n, in_m, acc, acc_up, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the sums over K of mxfp4 weights, and with a gate those of the up projection.

    Bytes of the next step are loaded before those of this one are converted: Triton pipelines only loads that products
    read as they are.
    """
    K: tl.constexpr = SIZES.k
    BLOCK_N: tl.constexpr = TILES.block_n
    BLOCK_K: tl.constexpr = TILES.block_k
    GATED: tl.constexpr = SIZES.up_offset > 0
    packed, exponent = _load_mxfp4(weight, exponents, row, in_n, 0, BLOCK_K, K)
    if GATED:
        packed_up, exponent_up = _load_mxfp4(weight, exponents, row + SIZES.up_offset, in_n, 0, BLOCK_K, K)
    for step in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=1):
        next_packed, next_exponent = _load_mxfp4(weight, exponents, row, in_n, step + 1, BLOCK_K, K)
        if GATED:
            next_up, next_exponent_up = _load_mxfp4(
                weight, exponents, row + SIZES.up_offset, in_n, step + 1, BLOCK_K, K
            )
        even = step * BLOCK_K + 2 * tl.arange(0, BLOCK_K // 2)
        x_mask = in_m[None, :] & (even[:, None] < K)
        x_even = tl.load(x_rows + even[:, None], mask=x_mask, other=0.0)
        x_odd = tl.load(x_rows + even[:, None] + 1, mask=x_mask, other=0.0)
        acc = _add_mxfp4(packed, exponent, x_even, x_odd, acc, BLOCK_N, BLOCK_K)
        packed, exponent = next_packed, next_exponent
        if GATED:
            acc_up = _add_mxfp4(packed_up, exponent_up, x_even, x_odd, acc_up, BLOCK_N, BLOCK_K)
            packed_up, exponent_up = next_up, next_exponent_up
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
    SIZES: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr, MXFP4: tl.constexpr, PDL: tl.constexpr,
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
        acc, acc_up = _multiply_mxfp4(x_rows, weight, inputs.exponents, row, in_n, in_m, acc, acc_up, SIZES, TILES)
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
    values, exponents = weight if isinstance(weight, Mxfp4Weight) else (weight, None)
    mxfp4 = exponents is not None
    rows, k = values.shape[1], values.shape[2] * (2 if mxfp4 else 1)
    n = rows // 2 if activation else rows
    assert values.is_contiguous() and x.stride(1) == 1 and x.shape[1] == k
    assert not mxfp4 or (k % MXFP4_BLOCK == 0 and x.element_size() == 2)
    out = torch.empty(tiles.pairs.shape[0], n, dtype=x.dtype, device=x.device)
    up_offset = 0 if activation is None else 1 if interleaved else n
    _grouped_gemm_kernel[(tiles.expert.shape[0], cdiv(n, tiling.block_n))](
        x, values, GroupedInputs(exponents, bias, pair_weight), tiles, out, x.stride(0),
        SIZES=GroupedSizes(n, k, top_k, 2 if interleaved and activation else 1, up_offset), TILES=tiling,
        ACTIVATION=activation or Activation(False), MXFP4=mxfp4, num_warps=tiling.warps, num_stages=tiling.stages,
        **launch_options(x),
    )  # fmt: skip
    return out
