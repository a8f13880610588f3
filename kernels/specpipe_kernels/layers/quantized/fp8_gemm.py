"""Products of 8-bit rows and 8-bit weights for many rows: any size, scales by channel or by block of the weight.

For what the vendor's library refuses, and where its tiles leave half of the GPU idle. A program owns a tile of the
result and walks K, or its share of K: the last one to arrive adds the parts in a fixed order. Scales of channels and
rows are applied to the sums, those of blocks to the sums over their columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.layer_args import SplitSums
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, store_sums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.weights import Fp8Rows, QuantizedWeight


class Fp8Tiling(NamedTuple):
    """Tile sizes of a product; compile-time constants."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    """Steps whose loads are in flight."""
    warps: int
    by_descriptor: bool
    """Tiles are loaded by the tensor memory accelerator instead of by each thread."""
    splits: int = 1
    """Programs that share K."""


class Fp8Scales(NamedTuple):
    """Scales of a product."""

    rows: Tensor
    """[M] fp32."""
    weight: Tensor
    """[ceil(N / block rows), ceil(K / block columns)] fp32."""
    stride: int
    """Elements from one row of the weight's scales to the next."""


class Fp8Sizes(NamedTuple):
    """Sizes of a product; compile-time constants."""

    n: int
    k: int
    scale_rows: int
    """Rows of the weight that share a scale."""
    scale_columns: int
    """Columns of the weight that share a scale."""


@triton.jit
def _block_scales(scales, tile_n, step, n, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the scales of the weight for a step: one for a tile in one block, else [1, BLOCK_N]; 0 behind K."""
    at = scales.weight + step * TILES.block_k // SIZES.scale_columns
    in_k = step * TILES.block_k < SIZES.k
    if SIZES.scale_rows % TILES.block_n == 0:
        scale = tl.load(at + tile_n * TILES.block_n // SIZES.scale_rows * scales.stride, mask=in_k, other=0.0)
    else:
        scale = tl.load(at + n // SIZES.scale_rows * scales.stride, mask=in_k & (n < SIZES.n), other=0.0)[None, :]
    return scale


@triton.jit(do_not_specialize=["rows"])
def _fp8_gemm_kernel(
    x, weight, scales, bias, out, parts, rows, stride_x, SIZES: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = SIZES.n
    K: tl.constexpr = SIZES.k
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    BLOCK_K: tl.constexpr = TILES.block_k
    BY_DESCRIPTOR: tl.constexpr = TILES.by_descriptor
    SPLITS: tl.constexpr = TILES.splits
    BY_BLOCK: tl.constexpr = SIZES.scale_columns < K
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tile = tl.program_id(0)
    tile_m = tile % tiles_m  # neighbours share a tile of the weight
    tile_n = tile // tiles_m
    split = tl.program_id(1)
    steps: tl.constexpr = (K + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k_lanes = tl.arange(0, BLOCK_K)
    wait_for_inputs(PDL)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if BY_BLOCK:  # loaded a step ahead: the pipeline of the loop only moves loads of operands of the matrix unit
        next_scale = _block_scales(scales, tile_n, split * steps, n, SIZES, TILES)
    for step in tl.range(split * steps, (split + 1) * steps, num_stages=TILES.stages):
        if BY_DESCRIPTOR:
            x_tile = x.load([tile_m * BLOCK_M, step * BLOCK_K])
            w_tile = weight.load([tile_n * BLOCK_N, step * BLOCK_K])
        else:
            k = step * BLOCK_K + k_lanes
            x_at = x + m[:, None].to(tl.int64) * stride_x + k[None, :]
            x_tile = tl.load(x_at, mask=(m[:, None] < rows) & (k[None, :] < K), other=0.0)
            w_at = weight + n[:, None].to(tl.int64) * K + k[None, :]
            w_tile = tl.load(w_at, mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
        if BY_BLOCK:
            block_scale = next_scale
            next_scale = _block_scales(scales, tile_n, step + 1, n, SIZES, TILES)
            acc += tl.dot(x_tile, w_tile.T) * block_scale
        else:
            # Partial sums of the matrix unit have 14 bits; every BLOCK_K columns they are added in fp32.
            acc = tl.dot(x_tile, w_tile.T, acc, max_num_imprecise_acc=BLOCK_K)
    let_next_start(PDL)
    if SPLITS > 1:
        entry = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        arrived = store_sums(acc, acc, parts, tile, split, entry, 0, BLOCK_M * BLOCK_N, SPLITS)
        if arrived < SPLITS - 1:
            return
        acc, _ = add_splits(acc, acc, parts, tile, entry, 0, BLOCK_M * BLOCK_N, SPLITS)
    acc *= tl.load(scales.rows + m, mask=m < rows, other=0.0)[:, None]
    if not BY_BLOCK:
        acc *= tl.load(scales.weight + n // SIZES.scale_rows * scales.stride, mask=n < N, other=0.0)[None, :]
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    out_at = out + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=(m[:, None] < rows) & (n[None, :] < N))


def fp8_gemm(
    x: Fp8Rows,
    weight: QuantizedWeight,
    bias: Tensor | None,
    *,
    out: Tensor | None = None,
    tiles: Fp8Tiling | None = None,
) -> Tensor:
    """Returns x [M, K] times the weight [N, K] transposed, plus bias [N]: [M, N]. x has one scale a row."""
    (rows, k), n = x.values.shape, weight.shape[0]
    assert x.scale.shape[0] == 1 and x.squares is None, "products of many rows take whole rows"
    out = torch.empty(rows, n, dtype=x.dtype, device=x.values.device) if out is None else out
    if not rows:
        return out
    tiling = tiles or fp8_tiling(rows, n, k, processors(x.values.device))
    if k % 16 or x.values.stride(0) % 16:
        tiling = tiling._replace(by_descriptor=False)
    x_in: Any = x.values
    w_in: Any = weight.values
    if tiling.by_descriptor:
        x_in = TensorDescriptor.from_tensor(x.values, [tiling.block_m, tiling.block_k])
        w_in = TensorDescriptor.from_tensor(weight.values, [tiling.block_n, tiling.block_k])
    count = cdiv(rows, tiling.block_m) * cdiv(n, tiling.block_n)
    parts = SplitSums(None, None)
    if tiling.splits > 1:
        sums = torch.empty(count * tiling.splits * tiling.block_m * tiling.block_n, device=x.values.device)
        parts = SplitSums(sums, arrivals(x.values, count))
    scales = Fp8Scales(x.scale, weight.scale, weight.scale.stride(0))
    _fp8_gemm_kernel[(count, tiling.splits)](
        x_in, w_in, scales, bias, out, parts, rows, x.values.stride(0),
        SIZES=Fp8Sizes(n, k, *weight.block), TILES=tiling, num_warps=tiling.warps, num_stages=tiling.stages,
        **launch_options(x.values),
    )  # fmt: skip
    return out


@cache
def fp8_tiling(rows: int, n: int, k: int, processors: int) -> Fp8Tiling:
    """Returns the tile sizes of a product. processors: streaming multiprocessors of the GPU."""
    tiles, splits = cdiv(rows, 64) * cdiv(n, 128), 1
    if tiles > 2 * processors:
        return Fp8Tiling(128, 128, 128, 4, 8, True)
    # Two programs fill a multiprocessor, but adding the parts of short sums takes longer than that saves.
    while 2 * tiles * splits <= processors * min(2, k // (2 * splits) // 1792) and splits < 8:
        splits *= 2
    return Fp8Tiling(64, 128, 128, 5 if tiles * splits <= processors else 4, 4, True, splits)


@cache
def beats_library(rows: int, n: int, processors: int) -> bool:
    """Returns true where smaller tiles and shared K outweigh the library's faster programs of 128 x 128 outputs.

    As measured on an H200 with the products of Llama's 8B and 70B: where the library leaves multiprocessors idle, and
    where its tiles need a second turn.
    """
    tiles, large = cdiv(rows, 64) * cdiv(n, 128), cdiv(rows, 128) * cdiv(n, 128)
    return tiles <= processors or large > processors >= tiles / 2
