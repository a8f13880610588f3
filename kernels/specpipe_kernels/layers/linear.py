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
from specpipe_kernels.types import UNSCALED, KVScales, Normed, QuantizedWeight


def _is_skinny(values: Tensor, limit: int = MAX_ROWS) -> bool:
    """Returns true if the weights' bytes bound the product [M, N]. fp32 products gain nothing from the matrix unit."""
    return values.shape[0] <= limit and values.element_size() == 2


def _complete_rows(x: Tensor | Normed) -> Tensor:
    """Returns rows [M, K] whose norm, if any, is complete."""
    if isinstance(x, Normed):
        assert x.squares is None, "an incomplete norm goes to skinny products only"
        return x.values
    return x


def linear(
    x: Tensor | Normed, weight: Tensor | QuantizedWeight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """See `specpipe_kernels.linear`."""
    values = x.values if isinstance(x, Normed) else x
    outputs = weight.shape[0]
    if not values.shape[0]:  # a prefill that needs no logits
        return values.new_empty(0, outputs) if out is None else out
    if _is_skinny(values, MAX_GLU_ROWS if outputs >= LARGE else MAX_ROWS):
        return skinny_gemm(x, weight, PLAIN, bias=bias, out=out).out
    if bias is None and out is not None:
        return torch.mm(_complete_rows(x), dense_weight(weight, values.dtype).t(), out=out)
    product = functional.linear(_complete_rows(x), dense_weight(weight, values.dtype), bias)
    return product if out is None else out.copy_(product)


def linear_glu(x: Tensor | Normed, weight: Tensor | QuantizedWeight) -> Tensor:
    """See `specpipe_kernels.linear_glu`."""
    values = x.values if isinstance(x, Normed) else x
    if _is_skinny(values, MAX_GLU_ROWS):
        return skinny_gemm(x, weight, GLU).out
    return silu_mul(functional.linear(_complete_rows(x), dense_weight(weight, values.dtype)))


def linear_residual(
    x: Tensor, weight: Tensor | QuantizedWeight, residual: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Normed]:
    """See `specpipe_kernels.linear_residual`."""
    if _is_skinny(x):
        out, scaled, squares = skinny_gemm(x, weight, RESIDUAL, residual=residual, norm_weight=norm_weight)
        return out, Normed(out if scaled is None else scaled, squares, eps)
    product = functional.linear(x, dense_weight(weight, x.dtype))
    if norm_weight is None:
        out = product.add_(residual)
        return out, Normed(out, None, eps)
    out, normed = add_rms_norm(product, residual, norm_weight, eps)
    return out, Normed(normed, None, eps)


def linear_rope_store_kv(
    x: Tensor | Normed,
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
    values = x.values if isinstance(x, Normed) else x
    if _is_skinny(values) and q_norm is None:
        rope = RopeArgs(cos, sin, positions, k_pages, v_pages, write_index, *scales)
        q = skinny_gemm(x, weight, ROPE, bias=bias, rope=rope, q_heads=q_heads).out
        return q.view(values.shape[0], q_heads, -1)
    return rope_store_kv(
        linear(x, weight, bias), cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm,
        k_norm=k_norm, eps=eps, scales=scales,
    )  # fmt: skip
