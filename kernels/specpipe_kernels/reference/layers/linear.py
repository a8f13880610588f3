"""Matrix products of a decoder layer in plain torch. Norms are always complete: leaving them pending saves nothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from specpipe_kernels.reference.layers.dequantize import dense_weight
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows, quantize_rows
from specpipe_kernels.reference.layers.rms_norm import rms_norm, rms_norm_fp8
from specpipe_kernels.reference.layers.rope_store_kv import rope_store_kv
from specpipe_kernels.types import UNSCALED, KVScales
from specpipe_kernels.weights import Fp8Rows, Normed, Rows, Weight


def _rows(x: Rows) -> Tensor:
    if isinstance(x, Tensor):
        return x
    assert x.squares is None, "the reference never leaves a norm pending"
    return dequantize_rows(x, x.dtype) if isinstance(x, Fp8Rows) else x.values


def linear(x: Rows, weight: Weight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """See `specpipe_kernels.linear`. Rows in 16 bits are not rounded for weights in 8."""
    rows = _rows(x)
    product = functional.linear(rows, dense_weight(weight, rows.dtype), bias)
    return product if out is None else out.copy_(product)


def linear_glu(x: Rows, weight: Weight, *, fp8: bool = False) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.linear_glu`."""
    product = linear(x, weight)
    if fp8:
        gate, up = product.float().chunk(2, dim=-1)
        return quantize_rows(functional.silu(gate) * up, gate.shape[1])._replace(dtype=product.dtype)
    gate, up = product.chunk(2, dim=-1)
    return functional.silu(gate) * up


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
    h = residual + linear(x, weight, bias)
    if fp8 and norm_weight is not None:
        return h, rms_norm_fp8(h, norm_weight, eps)
    return h, Normed(h if norm_weight is None else rms_norm(h, norm_weight, eps), None, eps)


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
    qkv = linear(x, weight, bias)
    return rope_store_kv(
        qkv, cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm, k_norm=k_norm,
        eps=eps, scales=scales,
    )  # fmt: skip
