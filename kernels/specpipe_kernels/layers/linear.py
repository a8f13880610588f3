"""Matrix products of a decoder layer: few rows by the skinny GEMM kernel, many rows by wide products.

8-bit weights are multiplied with 8-bit rows at every number of rows, so that the number of rows changes rounding alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.layers.gemm_tiling import (
    LARGE,
    MAX_GLU_ROWS,
    MAX_INT4_GLU_ROWS,
    MAX_ROWS,
    MAX_WHOLE_HEAD_ROWS,
    max_int4_rows,
)
from specpipe_kernels.layers.layer_args import HeadNorms, RopeArgs
from specpipe_kernels.layers.quantized.int4_gemm import converts_tiles, int4_gemm
from specpipe_kernels.layers.quantized.int4_layout import has_int4_tiles
from specpipe_kernels.layers.quantized.quantize_rows import quantize_rows
from specpipe_kernels.layers.quantized.wide_product import wide_product
from specpipe_kernels.layers.rms_norm import add_rms_norm
from specpipe_kernels.layers.rope_store_kv import rope_store_kv
from specpipe_kernels.layers.silu_mul import silu_mul
from specpipe_kernels.layers.skinny_gemm import skinny_gemm
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.types import UNSCALED, KVScales
from specpipe_kernels.weights import MAX_FP8_ROWS, Fp8Rows, Normed, QuantizedWeight, Rows, Weight, dtype_of, is_fp8


def _operands(x: Rows, weight: Weight) -> tuple[Normed | Fp8Rows, Weight]:
    """Returns x in the number format that the weight is multiplied with, and the weight or its dense copy."""
    normed = x if isinstance(x, Normed | Fp8Rows) else Normed(x, None, 0.0)
    if isinstance(normed, Fp8Rows) or not is_fp8(weight):
        assert is_fp8(weight) or isinstance(normed, Normed), "rows in 8 bits are for weights in 8 bits"
        return normed, _dense_copy(weight, normed.values)
    return quantize_rows(normed.values)._replace(squares=normed.squares, eps=normed.eps), weight


def _dense_copy(weight: Weight, x: Tensor) -> Weight:
    """Returns the weight's dense copy, if it has one and the product with x [M, K] is faster with it; else itself."""
    if not isinstance(weight, QuantizedWeight) or weight.dense is None:
        return weight
    few = x.shape[0] <= max_int4_rows(weight.shape.numel())
    reads_int4 = few and x.element_size() == 2 and has_int4_tiles(weight)
    return weight if reads_int4 else weight.dense


def _is_skinny(x: Normed | Fp8Rows, weight: Weight, limit: int = MAX_ROWS, *, fp8: bool = False) -> bool:
    """Returns true if the weights' bytes bound the product [M, N]. fp32 products gain nothing from the matrix unit.

    limit: most rows of a product in 16 bits. fp8: the result is in 8 bits.
    """
    if is_fp8(weight) or fp8:
        limit = MAX_FP8_ROWS  # the next product takes one scale for each tile up to here, and one a row beyond
    if isinstance(weight, QuantizedWeight) and not is_fp8(weight) and not has_int4_tiles(weight):
        return False
    return x.values.shape[0] <= limit and dtype_of(x).itemsize == 2


def _whole(x: Normed | Fp8Rows) -> Tensor | Fp8Rows:
    """Returns rows [M, K] whose norm, if any, is complete.

    Skinny products leave one to a weight in 4 bits that no product converts, such as one of 576 columns.
    """
    if isinstance(x, Fp8Rows):
        assert x.squares is None, "an incomplete norm in 8 bits goes to skinny products only"
        return x
    if x.squares is None:
        return x.values
    mean = x.squares.sum(0) / x.values.shape[1]
    return (x.values * torch.rsqrt(mean + x.eps)[:, None]).to(x.values.dtype)


def linear(
    x: Rows,
    weight: Weight,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `specpipe_kernels.linear`."""
    (rows, weight), outputs = _operands(x, weight), weight.shape[0]
    if not rows.values.shape[0]:  # a prefill that needs no logits
        return rows.values.new_empty(0, outputs, dtype=dtype_of(rows)) if out is None else out
    pending = rows.squares is not None  # by a product in 8 bits, which is skinny up to more rows
    large = outputs >= LARGE and isinstance(weight, Tensor)
    if _is_skinny(rows, weight, MAX_GLU_ROWS if large or pending else MAX_ROWS):
        return skinny_gemm(rows, weight, PLAIN, bias=bias, out=out).out
    return wide_product(_whole(rows), weight, bias, out)


def linear_glu(x: Rows, weight: Weight, *, fp8: bool = False) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.linear_glu`."""
    rows, weight = _operands(x, weight)
    if _is_skinny(rows, weight, MAX_GLU_ROWS if isinstance(weight, Tensor) else MAX_INT4_GLU_ROWS, fp8=fp8):
        result = skinny_gemm(rows, weight, GLU, fp8=fp8)
        return result.fp8_rows(dtype_of(rows)) if fp8 else result.out
    if not fp8 and isinstance(rows, Normed) and converts_tiles(weight, rows.values, glu=True):
        return int4_gemm(rows, weight, glu=True)
    return silu_mul(wide_product(_whole(rows), weight), fp8=fp8)


def linear_residual(
    x: Tensor | Fp8Rows,
    weight: Weight,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    *,
    bias: Tensor | None = None,
    fp8: bool = False,
) -> tuple[Tensor, Normed | Fp8Rows]:
    """See `specpipe_kernels.linear_residual`."""
    rows, weight = _operands(x, weight)
    fp8 = fp8 and norm_weight is not None
    if _is_skinny(rows, weight, fp8=fp8):
        result = skinny_gemm(rows, weight, RESIDUAL, bias=bias, residual=residual, norm_weight=norm_weight, fp8=fp8)
        if fp8:
            return result.out, result.fp8_rows(dtype_of(rows), eps)
        return result.out, Normed(result.out if result.scaled is None else result.scaled, result.squares, eps)
    product = wide_product(_whole(rows), weight, bias)
    if norm_weight is None:
        out = product.add_(residual)
        return out, Normed(out, None, eps)
    out, normed = add_rms_norm(product, residual, norm_weight, eps, fp8=fp8)
    return out, normed if isinstance(normed, Fp8Rows) else Normed(normed, None, eps)


def linear_rope_store_kv(
    x: Rows,
    weight: Weight,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    write_index: Tensor,
    *,
    q_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """See `specpipe_kernels.linear_rope_store_kv`."""
    rows, weight = _operands(x, weight)
    # A program that completes norms owns a whole head: of more rows, or in 4 bits, registers do not suffice for it.
    whole_heads = rows.values.shape[0] <= MAX_WHOLE_HEAD_ROWS and (
        not isinstance(weight, QuantizedWeight) or is_fp8(weight)
    )
    if _is_skinny(rows, weight) and (q_norm is None or whole_heads):
        rope, norms = RopeArgs(cos, sin, positions, k_pages, v_pages, write_index, *scales), HeadNorms(q_norm, k_norm)
        q = skinny_gemm(
            rows, weight, ROPE, bias=bias, rope=rope, q_heads=q_heads, norms=norms, head_eps=eps
        ).out  # fmt: skip
        return q.view(rows.values.shape[0], q_heads, -1)
    return rope_store_kv(
        linear(rows, weight, bias), cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm,
        k_norm=k_norm, eps=eps, scales=scales,
    )  # fmt: skip
