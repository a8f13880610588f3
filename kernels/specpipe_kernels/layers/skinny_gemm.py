"""Launches of products of few rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.gemm_tiling import MAX_FP8_ROWS, MAX_GLU_ROWS, GemmTiling, gemm_tiling
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, RESIDUAL, ROPE, _skinny_gemm_kernel
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.types import Fp8Weight, Normed, full_weight

_PREFETCH_VALUES = 48  # values per thread that registers can hold for the epilogue during the products


class Rope(NamedTuple):
    """Arguments of the ROPE epilogue; see `specpipe_kernels.linear_rope_store_kv`."""

    cos: Tensor
    sin: Tensor
    positions: Tensor
    k_pages: Tensor
    v_pages: Tensor
    write_index: Tensor
    q_heads: int


def skinny_gemm(
    x: Tensor | Normed,
    any_weight: Tensor | Fp8Weight,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    rope: Rope | None = None,
    tiles: GemmTiling | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Multiplies x [M, K] by the weight [N, K] transposed and applies an epilogue of `skinny_gemm_kernel`.

    Returns the result [M, N] and, where norm_weight [N] is given, `values` and `squares` of a pending norm (`Normed`).
    tiles: tile sizes; None: those of `gemm_tiling`. out: [M, N] contiguous, receives the result.
    """
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    rows, k = values.shape
    fp8 = any_weight if isinstance(any_weight, Fp8Weight) and rows <= MAX_FP8_ROWS else None
    weight = full_weight(any_weight) if fp8 is None else fp8.values
    assert rows <= MAX_GLU_ROWS and weight.is_contiguous() and values.stride(1) == 1
    n, dim, kv_heads, page_size = weight.shape[0] // (1 + (epilogue == GLU)), 0, 1, 1
    out_shape, halves = (rows, n), n
    if rope is not None:
        _, kv_heads, page_size, dim = rope.k_pages.shape
        out_shape, halves = (rows, rope.q_heads * dim), n // 2
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
    scaled = torch.empty_like(out) if norm_weight is not None else out
    parts = out.new_empty(count, rows, dtype=torch.float32) if norm_weight is not None else out
    part = tile_sizes.block_n * block_m * (2 if epilogue in (GLU, ROPE) else 1)
    scratch = out.new_empty(count * tile_sizes.splits * part if tile_sizes.splits > 1 else 1, dtype=torch.float32)
    PARTS = 0 if squares is None else squares.shape[0]
    cos, sin, positions, k_pages, v_pages, index, q_heads = rope or (out, out, out, out, out, out, 0)
    x_in: Any = values
    w_in: Any = weight
    if tile_sizes.by_descriptor and _has_descriptors(values, weight):
        x_in = TensorDescriptor.from_tensor(values, [block_m, tile_sizes.block_k])
        w_in = TensorDescriptor.from_tensor(weight, [tile_sizes.block_n, tile_sizes.block_k])
    _skinny_gemm_kernel[(count, tile_sizes.splits)](
        x_in, values if squares is None else squares, w_in, weight if fp8 is None else fp8.scale,
        weight if bias is None else bias,
        out if residual is None else residual, weight if norm_weight is None else norm_weight, out, scaled, parts,
        scratch, arrivals(values, count), cos, sin, positions, k_pages, v_pages, index,
        rows, cos.shape[0] - 1, eps, values.stride(0), 0 if residual is None else residual.stride(0),
        N=n, K=k, BLOCK_M=block_m, BLOCK_N=tile_sizes.block_n, BLOCK_K=tile_sizes.block_k, SPLITS=tile_sizes.splits,
        PARTS=PARTS, PARTS_PAD=power_of_2(max(1, PARTS)), EPILOGUE=epilogue, BIAS=bias is not None,
        NORM=norm_weight is not None, Q_HEADS=q_heads, KV_HEADS=kv_heads, D=dim, PAGE_SIZE=page_size,
        FP8=fp8 is not None, STAGES=tile_sizes.stages, BY_DESCRIPTOR=x_in is not values,
        PREFETCH=_prefetches(epilogue, tile_sizes, block_m, PARTS), num_warps=tile_sizes.warps,
        num_stages=tile_sizes.stages, **launch_options(values),
    )  # fmt: skip
    return out, scaled, parts


def _prefetches(epilogue: int, tile_sizes: GemmTiling, block_m: int, parts: int) -> bool:
    """Returns true if registers can hold the inputs of the epilogue beside the accumulators."""
    tile_values = {ROPE: 4, RESIDUAL: 1}.get(epilogue, 0) * tile_sizes.block_n * block_m
    part_values = power_of_2(parts) * block_m if parts else 0
    return tile_values + part_values <= _PREFETCH_VALUES * 32 * tile_sizes.warps


def _has_descriptors(*tensors: Tensor) -> bool:
    """Returns true if the tensors meet the alignment of tensor descriptors: rows of whole 16 bytes."""
    return all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)
