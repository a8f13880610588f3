"""Matrix products and norms of a decoder layer, fused for few rows.

M rows (tokens of all requests), H hidden size, I intermediate size, N outputs, D head size. Products of at most
`layers.gemm_tiling.MAX_ROWS` rows (skinny GEMMs) read their weights once at memory speed. Larger ones use the vendor's
library and fuse the element-wise work around the product.

A weight in 8 bits is multiplied by rows in 8 bits (`Fp8Rows`), which the operation before it returns with `fp8`; rows
in 16 bits are rounded. Values do not depend on the number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import UNSCALED, KVScales
from specpipe_kernels.weights import Fp8Rows, Normed, QuantizedWeight, Rows, Weight, dtype_of, values_of


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x [M, H] over its root mean square, times weight [H]; sums in fp32 (arXiv 1910.07467)."""
    result: Tensor = implementation("layers.rms_norm", x)(x, weight, eps)
    return result


def rms_norm_fp8(x: Tensor, weight: Tensor, eps: float) -> Fp8Rows:
    """Returns `rms_norm` in 8 bits. x times weight is rounded; scales, one a row, contain the division."""
    result: Fp8Rows = implementation("layers.rms_norm", x, "rms_norm_fp8")(x, weight, eps)
    return result


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns h = x + residual [M, H] and `rms_norm` of h."""
    result: tuple[Tensor, Tensor] = implementation("layers.rms_norm", x, "add_rms_norm")(x, residual, weight, eps)
    return result


def with_dense_copy(weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedWeight:
    """Returns a 4-bit weight with a dense copy in dtype, which products of many rows read in its place."""
    dense: Tensor = implementation("layers.dequantize", weight.values)(weight, dtype)
    return weight._replace(dense=dense)


def linear(x: Rows, weight: Weight, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Returns x [M, K] times weight [N, K] transposed, plus bias [N]: [M, N] in x's dtype, sums in fp32.

    out: [M, N] contiguous, receives the result. Raises ValueError if its shape, dtype or layout does not fit.
    """
    values, dtype = values_of(x), dtype_of(x)
    shape = (values.shape[0], weight.shape[0])
    if out is not None and (out.shape != shape or out.dtype != dtype or not out.is_contiguous()):
        raise ValueError(f"out {list(out.shape)} {out.dtype}; expected {list(shape)} {dtype}, contiguous")
    result: Tensor = implementation("layers.linear", values)(x, weight, bias, out)
    return result


def linear_glu(x: Rows, weight: Weight, *, fp8: bool = False) -> Tensor | Fp8Rows:
    """Returns SiLU(x @ gate.T) * (x @ up.T) [M, I] for weight [2 I, H] = gate above up (arXiv 2002.05202).

    fp8: the result is in 8 bits.
    """
    function = implementation("layers.linear", values_of(x), "linear_glu")
    result: Tensor | Fp8Rows = function(x, weight, fp8=fp8)
    return result


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
    """Returns h = residual [M, N] + x [M, K] times weight [N, K] transposed + bias [N], and the RMS norm of h.

    norm_weight [N]: weight of that norm; without it the second result is undefined. fp8: the norm is in 8 bits.
    """
    function = implementation("layers.linear", values_of(x), "linear_residual")
    result: tuple[Tensor, Normed | Fp8Rows] = function(x, weight, residual, norm_weight, eps, bias=bias, fp8=fp8)
    return result


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
    """Projects x [M, H], rotates queries and keys, stores keys and values; returns the queries [M, Hq, D].

    RoPE: Su et al., arXiv 2104.09864.

    Args:
        x: [M, H].
        weight: [(Hq + 2 Hkv) * D, H], of q, k and v above each other.
        bias: [(Hq + 2 Hkv) * D].
        cos, sin: [P, D] tables by position, in the half-split layout of transformers.
        positions: [M] int64, index the tables.
        k_pages, v_pages, write_index, scales: as in `store_kv`.
        q_heads: Hq.
        q_norm, k_norm: [D], weights of RMS norms over each head before rotation (Qwen 3).
        eps: of these norms.

    The tables, positions and write_index may be read while the previous launch of the stream still runs: that launch
    must not write them.
    """
    function = implementation("layers.linear", values_of(x), "linear_rope_store_kv")
    result: Tensor = function(
        x, weight, bias, cos, sin, positions, k_pages, v_pages, write_index,
        q_heads=q_heads, q_norm=q_norm, k_norm=k_norm, eps=eps, scales=scales,
    )  # fmt: skip
    return result


def rope_store_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    write_index: Tensor,
    *,
    q_heads: int,
    scales: KVScales = UNSCALED,
) -> Tensor:
    """Rotates and stores queries, keys and values qkv [M, (Hq + 2 Hkv) * D]; returns the queries [M, Hq, D].

    The second half of `linear_rope_store_kv`, which documents the other arguments.
    """
    result: Tensor = implementation("layers.rope_store_kv", qkv)(
        qkv, cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, scales=scales
    )
    return result
