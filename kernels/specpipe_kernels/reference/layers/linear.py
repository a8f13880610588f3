"""Matrix products of a decoder layer in plain torch. Norms are always complete: leaving them pending saves nothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from specpipe_kernels.reference.layers.dequantize import dense_weight
from specpipe_kernels.reference.layers.rms_norm import rms_norm
from specpipe_kernels.reference.layers.rope_store_kv import rope_store_kv
from specpipe_kernels.types import UNSCALED, KVScales, Normed, QuantizedWeight


def _rows(x: Tensor | Normed) -> Tensor:
    if isinstance(x, Normed):
        assert x.squares is None, "the reference never leaves a norm pending"
        return x.values
    return x


def linear(
    x: Tensor | Normed, weight: Tensor | QuantizedWeight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """See `specpipe_kernels.linear`."""
    product = functional.linear(_rows(x), dense_weight(weight, _rows(x).dtype), bias)
    return product if out is None else out.copy_(product)


def linear_glu(x: Tensor | Normed, weight: Tensor | QuantizedWeight) -> Tensor:
    """See `specpipe_kernels.linear_glu`."""
    gate, up = functional.linear(_rows(x), dense_weight(weight, _rows(x).dtype)).chunk(2, dim=-1)
    return functional.silu(gate) * up


def linear_residual(
    x: Tensor, weight: Tensor | QuantizedWeight, residual: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Normed]:
    """See `specpipe_kernels.linear_residual`."""
    h = residual + functional.linear(x, dense_weight(weight, x.dtype))
    return h, Normed(h if norm_weight is None else rms_norm(h, norm_weight, eps), None, eps)


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
    qkv = linear(x, weight, bias)
    return rope_store_kv(
        qkv, cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm, k_norm=k_norm,
        eps=eps, scales=scales,
    )  # fmt: skip
