"""Matrix products of a decoder layer: few rows by the skinny GEMM kernel, many rows by the vendor's library."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.layers.gemm_tiling import LARGE, MAX_GLU_ROWS, MAX_ROWS
from specpipe_kernels.layers.layer_args import RopeArgs
from specpipe_kernels.layers.rms_norm import add_rms_norm
from specpipe_kernels.layers.rope_store_kv import rope_store_kv
from specpipe_kernels.layers.silu_mul import silu_mul
from specpipe_kernels.layers.skinny_gemm import skinny_gemm
from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.reference.layers.dequantize import dense_weight
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows, quantize_rows
from specpipe_kernels.types import UNSCALED, Fp8Rows, KVScales, Normed, QuantizedWeight


def _values(x: Tensor | Normed | Fp8Rows) -> Tensor:
    return x if isinstance(x, Tensor) else x.values


def _dtype(x: Tensor | Normed | Fp8Rows) -> torch.dtype:
    """Returns the dtype of products of x."""
    return x.dtype if isinstance(x, Fp8Rows) else _values(x).dtype


def _is_skinny(x: Tensor | Normed | Fp8Rows, weight: Tensor | QuantizedWeight, limit: int = MAX_ROWS) -> bool:
    """Returns true if the weights' bytes bound the product [M, N]. fp32 products gain nothing from the matrix unit."""
    values = _values(x)
    if isinstance(x, Fp8Rows):
        return values.shape[0] <= MAX_ROWS
    return values.shape[0] <= limit and values.element_size() == 2 and isinstance(weight, Tensor)


def _complete_rows(x: Tensor | Normed | Fp8Rows) -> Tensor:
    """Returns rows [M, K] in 16 or 32 bits whose norm, if any, is complete."""
    if isinstance(x, Fp8Rows):
        assert x.squares is None, "an incomplete norm goes to skinny products only"
        return dequantize_rows(x, x.dtype)
    if isinstance(x, Normed):
        assert x.squares is None, "an incomplete norm goes to skinny products only"
        return x.values
    return x


def linear(
    x: Tensor | Normed | Fp8Rows,
    weight: Tensor | QuantizedWeight,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `specpipe_kernels.linear`."""
    rows, outputs = _values(x).shape[0], weight.shape[0]
    if not rows:  # a prefill that needs no logits
        return _complete_rows(x).new_empty(0, outputs) if out is None else out
    if _is_skinny(x, weight, MAX_GLU_ROWS if outputs >= LARGE else MAX_ROWS):
        return skinny_gemm(x, weight, PLAIN, bias=bias, out=out).out
    complete = _complete_rows(x)
    dense = dense_weight(weight, complete.dtype)
    if bias is None and out is not None:
        return torch.mm(complete, dense.t(), out=out)
    product = functional.linear(complete, dense, bias)
    return product if out is None else out.copy_(product)


def linear_glu(
    x: Tensor | Normed | Fp8Rows, weight: Tensor | QuantizedWeight, *, fp8: bool = False
) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.linear_glu`."""
    if _is_skinny(x, weight, MAX_ROWS if fp8 else MAX_GLU_ROWS):
        result = skinny_gemm(x, weight, GLU, fp8=fp8)
        return result.fp8_rows(_dtype(x)) if fp8 else result.out
    product = silu_mul(linear(x, weight))
    return quantize_rows(product, product.shape[1]) if fp8 else product


def linear_residual(
    x: Tensor | Fp8Rows,
    weight: Tensor | QuantizedWeight,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    *,
    fp8: bool = False,
) -> tuple[Tensor, Normed | Fp8Rows]:
    """See `specpipe_kernels.linear_residual`."""
    fp8 = fp8 and norm_weight is not None
    if _is_skinny(x, weight):
        result = skinny_gemm(x, weight, RESIDUAL, residual=residual, norm_weight=norm_weight, fp8=fp8)
        if fp8:
            return result.out, result.fp8_rows(residual.dtype, eps)
        return result.out, Normed(result.out if result.scaled is None else result.scaled, result.squares, eps)
    product = linear(x, weight)
    if norm_weight is None:
        out = product.add_(residual)
        return out, Normed(out, None, eps)
    out, normed = add_rms_norm(product, residual, norm_weight, eps)
    return out, quantize_rows(normed, normed.shape[1]) if fp8 else Normed(normed, None, eps)


def linear_rope_store_kv(
    x: Tensor | Normed | Fp8Rows,
    weight: Tensor | QuantizedWeight,
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
    if _is_skinny(x, weight) and q_norm is None:
        rope = RopeArgs(cos, sin, positions, k_pages, v_pages, write_index, *scales)
        q = skinny_gemm(x, weight, ROPE, bias=bias, rope=rope, q_heads=q_heads).out
        return q.view(q.shape[0], q_heads, -1)
    return rope_store_kv(
        linear(x, weight, bias), cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm,
        k_norm=k_norm, eps=eps, scales=scales,
    )  # fmt: skip
