"""Launches of products of few rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.gemm_tiling import MAX_FP8_ROWS, MAX_GLU_ROWS, GemmTiling, gemm_tiling
from specpipe_kernels.layers.layer_args import (
    NO_ROPE,
    GemmInputs,
    GemmOutputs,
    GemmSizes,
    HeadSizes,
    RopeArgs,
    SplitSums,
)
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, RESIDUAL, ROPE, _skinny_gemm_kernel
from specpipe_kernels.reference.layers.dequantize import dense_weight
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.types import Normed, QuantizedWeight

_PREFETCH_VALUES = 48  # values per thread that registers can hold for the epilogue during the products


def skinny_gemm(
    x: Tensor | Normed,
    any_weight: Tensor | QuantizedWeight,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    rope: RopeArgs | None = None,
    q_heads: int = 0,
    tiles: GemmTiling | None = None,
    out: Tensor | None = None,
) -> GemmOutputs:
    """Multiplies x [M, K] by the weight [N, K] transposed and applies an epilogue of `skinny_gemm_kernel`.

    Where norm_weight [N] is given, `scaled` and `squares` of the results are those of a pending norm (`Normed`).
    rope and q_heads: arguments of ROPE. tiles: tile sizes; None: those of `gemm_tiling`. out: [M, N] contiguous,
    receives the result.
    """
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    rows, k = values.shape
    fp8 = any_weight if isinstance(any_weight, QuantizedWeight) and rows <= MAX_FP8_ROWS else None
    weight = dense_weight(any_weight, values.dtype) if fp8 is None else fp8.values
    assert rows <= MAX_GLU_ROWS and weight.is_contiguous() and values.stride(1) == 1
    n, dim, kv_heads, page_size = weight.shape[0] // (1 + (epilogue == GLU)), 0, 1, 1
    out_shape, halves = (rows, n), n
    if rope is not None:
        _, kv_heads, page_size, dim = rope.k_pages.shape
        out_shape, halves = (rows, q_heads * dim), n // 2
    tile_sizes = tiles or gemm_tiling(
        rows, halves, k, epilogue=epilogue, itemsize=values.element_size(), processors=processors(values.device),
        head_dim=dim,
    )  # fmt: skip
    if fp8 is not None and tiles is None:
        tile_sizes = tile_sizes._replace(
            stages=tile_sizes.stages + 2
        )  # a stage has half the bytes: more stages in flight
    count = n // dim * cdiv(dim // 2, tile_sizes.block_n) if rope is not None else cdiv(n, tile_sizes.block_n)
    block_m = max(16, power_of_2(rows))
    out = values.new_empty(out_shape) if out is None else out
    outputs, splits = GemmOutputs(out, None, None), SplitSums(None, None)
    if norm_weight is not None:
        squares_out = out.new_empty(count, rows, dtype=torch.float32)
        outputs = GemmOutputs(out, torch.empty_like(out), squares_out)
    if tile_sizes.splits > 1:
        part = tile_sizes.block_n * block_m * (2 if epilogue in (GLU, ROPE) else 1)
        sums = out.new_empty(count * tile_sizes.splits * part, dtype=torch.float32)
        splits = SplitSums(sums, arrivals(values, count))
    parts = 0 if squares is None else squares.shape[0]
    x_in: Any = values
    w_in: Any = weight
    by_descriptor = tile_sizes.by_descriptor and _has_descriptors(values, weight)
    if by_descriptor:
        x_in = TensorDescriptor.from_tensor(values, [block_m, tile_sizes.block_k])
        w_in = TensorDescriptor.from_tensor(weight, [tile_sizes.block_n, tile_sizes.block_k])
    scale = None if fp8 is None else fp8.scale
    _skinny_gemm_kernel[(count, tile_sizes.splits)](
        x_in, w_in, GemmInputs(squares, scale, bias, residual, norm_weight), outputs, splits, rope or NO_ROPE,
        rows, 0 if rope is None else rope.cos.shape[0] - 1, eps, values.stride(0),
        0 if residual is None else residual.stride(0),
        SIZES=GemmSizes(n, k, block_m, parts, power_of_2(max(1, parts))),
        TILES=tile_sizes._replace(by_descriptor=by_descriptor), HEADS=HeadSizes(q_heads, kv_heads, dim, page_size),
        EPILOGUE=epilogue, PREFETCH=_prefetches(epilogue, tile_sizes, block_m, parts), num_warps=tile_sizes.warps,
        num_stages=tile_sizes.stages, **launch_options(values),
    )  # fmt: skip
    return outputs


def _prefetches(epilogue: int, tile_sizes: GemmTiling, block_m: int, parts: int) -> bool:
    """Returns true if registers can hold the inputs of the epilogue beside the accumulators."""
    tile_values = {ROPE: 4, RESIDUAL: 1}.get(epilogue, 0) * tile_sizes.block_n * block_m
    part_values = power_of_2(parts) * block_m if parts else 0
    return tile_values + part_values <= _PREFETCH_VALUES * 32 * tile_sizes.warps


def _has_descriptors(*tensors: Tensor) -> bool:
    """Returns true if the tensors meet the alignment of tensor descriptors: rows of whole 16 bytes."""
    return all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)
