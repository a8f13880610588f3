"""Launches of products of few rows."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.gemm_tiling import MAX_GLU_ROWS, GemmTiling, gemm_tiling
from specpipe_kernels.layers.layer_args import (
    NO_NORMS,
    NO_ROPE,
    GemmInputs,
    GemmOutputs,
    GemmSizes,
    HeadNorms,
    HeadSizes,
    RopeArgs,
    SplitSums,
)
from specpipe_kernels.layers.quantized.int4_layout import has_int4_tiles
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, RESIDUAL, ROPE, _skinny_gemm_kernel
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Fp8Rows, Normed, QuantizedWeight

_PREFETCH_VALUES = 48  # values per thread that registers can hold for the epilogue during the products


class GemmResult(NamedTuple):
    """Results of a skinny product; None where there is none."""

    out: Tensor
    """[M, N]; of ROPE the rotated queries [M, Hq * D]; of GLU [M, N / 2]."""
    scaled: Tensor | None
    """[M, N]: out * norm_weight."""
    scale: Tensor | None
    """[tiles, M] fp32: scales of a result in 8 bits: `scaled`, or `out` of GLU."""
    squares: Tensor | None
    """[tiles, M] fp32: sums of squares of `out` over the columns of each tile."""
    group: int
    """Columns of a tile."""

    def fp8_rows(self, dtype: torch.dtype, eps: float = 0.0) -> Fp8Rows:
        """Returns the result in 8 bits. dtype: 16-bit dtype of the activations; eps: of a pending norm."""
        values = self.out if self.scaled is None else self.scaled
        assert self.scale is not None and values.dtype == torch.float8_e4m3fn
        return Fp8Rows(values, self.scale, self.group, dtype, self.squares, eps)


class _Operands(NamedTuple):
    """x [M, K] and weight [N, K] of a product, and what belongs to them."""

    x: Tensor
    weight: Tensor
    dtype: torch.dtype
    """Of results in 16 bits."""
    squares: Tensor | None
    eps: float
    x_scale: Tensor | None
    x_group: int
    """0 with one scale a row."""
    weight_scale: Tensor | None
    scale_rows: int
    scale_columns: int
    """0 with one scale for each row."""
    zeros: Tensor | None = None
    scale_strides: tuple[int, int] = (0, 0)
    """Of a weight in 4 bits, whose words `weight` are [N, K / 4] int16."""


def _operands(x: Tensor | Normed | Fp8Rows, weight: Tensor | QuantizedWeight) -> _Operands:
    """Returns the operands of a product; both are in 16 bits, both in 8, or the weight is in 4."""
    if isinstance(x, Fp8Rows):
        assert isinstance(weight, QuantizedWeight) and weight.values.dtype == x.values.dtype
        assert x.values.is_contiguous() and x.scale.is_contiguous() and weight.scale.is_contiguous()
        k, (rows, columns) = x.values.shape[1], weight.block
        by_row = columns >= k and rows == 1
        return _Operands(
            x.values, weight.values, x.dtype, x.squares, x.eps, x.scale, x.group if x.group < k else 0, weight.scale,
            rows, 0 if by_row else columns,
        )  # fmt: skip
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    if isinstance(weight, QuantizedWeight):
        scale, zeros = weight.scale, weight.zeros
        assert has_int4_tiles(weight) and (zeros is None or zeros.stride() == scale.stride())
        return _Operands(
            values, weight.values.view(torch.int16), values.dtype, squares, eps, None, 0, scale, 1, weight.block[1],
            zeros, (scale.stride(0), scale.stride(1)),
        )  # fmt: skip
    return _Operands(values, weight, values.dtype, squares, eps, None, 0, None, 1, 0)


def _step(block_k: int, groups: tuple[int, ...]) -> tuple[int, int]:
    """Returns the columns of a step over K, and BLOCK_K: a step crosses no boundary of groups (0: there are none)."""
    step = gcd(*groups)
    if step == 0 or step % block_k == 0:
        return block_k, block_k
    step = step if step < block_k else gcd(step, block_k)
    return step, max(32, power_of_2(step))


def skinny_gemm(
    x: Tensor | Normed | Fp8Rows,
    weight: Tensor | QuantizedWeight,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    rope: RopeArgs | None = None,
    q_heads: int = 0,
    norms: HeadNorms = NO_NORMS,
    head_eps: float = 0.0,
    tiles: GemmTiling | None = None,
    out: Tensor | None = None,
    fp8: bool = False,
) -> GemmResult:
    """Multiplies x [M, K] by the weight [N, K] transposed and applies an epilogue of `skinny_gemm_kernel`.

    Where norm_weight [N] is given, `scaled` and `squares` of the results are those of a pending norm (`Normed`).
    rope, q_heads, norms, head_eps: arguments of ROPE; norms need tiles of whole heads. tiles: tile sizes; None: those
    of `gemm_tiling`. out: [M, N] contiguous, receives the result. fp8: the result of GLU, or `scaled`, is in 8 bits,
    with `scale` for each tile of columns.
    """
    given = _operands(x, weight)
    values, matrix = given.x, given.weight
    rows, k = values.shape
    assert rows <= MAX_GLU_ROWS and matrix.is_contiguous() and values.stride(1) == 1
    n, dim, kv_heads, page_size = matrix.shape[0] // (1 + (epilogue == GLU)), 0, 1, 1
    out_shape, halves = (rows, n), n
    if rope is not None:
        _, kv_heads, page_size, dim = rope.k_pages.shape
        out_shape, halves = (rows, q_heads * dim), n // 2
    tile_sizes = tiles or gemm_tiling(
        rows, halves, k, epilogue=epilogue, itemsize=values.element_size(), processors=processors(values.device),
        head_dim=dim, whole_heads=norms.q is not None,
        int4_group=given.scale_columns if given.scale_strides != (0, 0) else 0,
    )  # fmt: skip
    groups = (given.x_group, given.scale_columns if given.x_scale is not None else 0)
    step, block_k = _step(tile_sizes.block_k, groups)
    # Narrower steps: more of them, so that as many bytes are in flight.
    tile_sizes = tile_sizes._replace(block_k=block_k, stages=tile_sizes.stages * max(1, tile_sizes.block_k // block_k))
    count = n // dim * cdiv(dim // 2, tile_sizes.block_n) if rope is not None else cdiv(n, tile_sizes.block_n)
    # One token fills half of the matrix unit's smallest tile; products in 16 and 8 bits are bound by their loads.
    block_m = max(8 if given.scale_strides != (0, 0) else 16, power_of_2(rows))
    assert norms.q is None or tile_sizes.block_n >= dim // 2, "a norm needs whole heads"
    outputs = _allocate(values, given.dtype, out, out_shape, count, epilogue == GLU, norm_weight is not None, fp8)
    splits = SplitSums(None, None)
    if tile_sizes.splits > 1:
        part = tile_sizes.block_n * block_m * (2 if epilogue in (GLU, ROPE) else 1)
        sums = values.new_empty(count * tile_sizes.splits * part, dtype=torch.float32)
        splits = SplitSums(sums, arrivals(values, count))
    parts = 0 if given.squares is None else given.squares.shape[0]
    x_in: Any = values
    w_in: Any = matrix
    by_descriptor = tile_sizes.by_descriptor and given.x_scale is None and _has_descriptors(values, matrix)
    if by_descriptor:
        x_in = TensorDescriptor.from_tensor(values, [block_m, block_k])
        w_in = TensorDescriptor.from_tensor(matrix, [tile_sizes.block_n, block_k])
    inputs = GemmInputs(given.squares, given.weight_scale, given.zeros, given.x_scale, bias, residual, norm_weight)
    sizes = GemmSizes(
        n, k, block_m, parts, power_of_2(max(1, parts)), step, given.dtype == torch.float16, given.x_scale is not None,
        given.x_group, given.scale_rows, given.scale_columns, given.scale_strides,
    )  # fmt: skip
    _skinny_gemm_kernel[(count, tile_sizes.splits)](
        x_in, w_in, inputs, outputs, splits, rope or NO_ROPE, norms,
        rows, 0 if rope is None else rope.cos.shape[0] - 1, given.eps, head_eps, values.stride(0),
        0 if residual is None else residual.stride(0), SIZES=sizes,
        TILES=tile_sizes._replace(by_descriptor=by_descriptor), HEADS=HeadSizes(q_heads, kv_heads, dim, page_size),
        EPILOGUE=epilogue, PREFETCH=_prefetches(epilogue, tile_sizes, block_m, parts), num_warps=tile_sizes.warps,
        num_stages=tile_sizes.stages, **launch_options(values),
    )  # fmt: skip
    return GemmResult(*outputs, tile_sizes.block_n)


def _allocate(
    x: Tensor, dtype: torch.dtype, out: Tensor | None, shape: tuple[int, int], tiles: int, glu: bool, norm: bool,
    fp8: bool,
) -> GemmOutputs:  # fmt: skip
    """Returns memory of the results. dtype: of those in 16 bits; out: the first, where it exists."""
    if out is None:
        out = x.new_empty(shape, dtype=torch.float8_e4m3fn if fp8 and glu else dtype)
    scale = x.new_empty(tiles, shape[0], dtype=torch.float32) if fp8 else None
    if not norm:
        return GemmOutputs(out, None, scale, None)
    squares = x.new_empty(tiles, shape[0], dtype=torch.float32)
    return GemmOutputs(out, torch.empty_like(out, dtype=torch.float8_e4m3fn if fp8 else dtype), scale, squares)


def _prefetches(epilogue: int, tile_sizes: GemmTiling, block_m: int, parts: int) -> bool:
    """Returns true if registers can hold the inputs of the epilogue beside the accumulators."""
    tile_values = {ROPE: 4, RESIDUAL: 1}.get(epilogue, 0) * tile_sizes.block_n * block_m
    part_values = power_of_2(parts) * block_m if parts else 0
    return tile_values + part_values <= _PREFETCH_VALUES * 32 * tile_sizes.warps


def _has_descriptors(*tensors: Tensor) -> bool:
    """Returns true if the tensors meet the alignment of tensor descriptors: rows of whole 16 bytes."""
    return all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)
