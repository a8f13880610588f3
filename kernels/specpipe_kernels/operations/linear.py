"""The parts of a decoder layer, fused for few rows: contracts, and the choice of the implementation.

M rows (tokens of all requests), H hidden size, I intermediate size, N outputs, D head size. Products of at most
`layers.gemm_tiling.MAX_ROWS` rows read their weights once at memory speed; wider ones go to the vendor's
library, with the element-wise work around them fused. Weights may be in 8 bits (`quantize_fp8`).
"""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import Fp8Weight, Normed


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [M, H] over its root mean square, times weight [H]; sums in fp32 (Zhang and Sennrich, arXiv 1910.07467)."""
    result: Tensor = implementation("layers.rms_norm", x)(x, weight, eps)
    return result


def linear(
    x: Tensor | Normed, weight: Tensor | Fp8Weight, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """x [M, K] times weight [N, K] transposed, plus bias [N]: [M, N] in x's dtype, sums in fp32.

    out: [M, N] contiguous, where the result goes. Raises ValueError for one that does not fit.
    """
    values = x.values if isinstance(x, Normed) else x
    shape = (values.shape[0], weight.shape[0])
    if out is not None and (out.shape != shape or out.dtype != values.dtype or not out.is_contiguous()):
        raise ValueError(f"out {list(out.shape)} {out.dtype}; expected {list(shape)} {values.dtype}, contiguous")
    result: Tensor = implementation("layers.linear", values)(x, weight, bias, out)
    return result


def linear_glu(x: Tensor | Normed, weight: Tensor | Fp8Weight) -> Tensor:
    """SiLU(x @ gate.T) * (x @ up.T) for weight [2 I, H] = gate above up: [M, I] (Shazeer, arXiv 2002.05202)."""
    values = x.values if isinstance(x, Normed) else x
    result: Tensor = implementation("layers.linear", values, "linear_glu")(x, weight)
    return result


def linear_residual(
    x: Tensor, weight: Tensor | Fp8Weight, residual: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Normed]:
    """h = residual [M, N] + x [M, K] times weight [N, K] transposed; returns h and its RMS norm.

    norm_weight [N]: of the norm that follows; None leaves the second result meaningless.
    """
    result: tuple[Tensor, Normed] = implementation("layers.linear", x, "linear_residual")(
        x, weight, residual, norm_weight, eps
    )
    return result


def linear_rope_store_kv(
    x: Tensor | Normed,
    weight: Tensor | Fp8Weight,
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
) -> Tensor:
    """Project x [M, H], rotate queries and keys, store keys and values; returns the queries [M, Hq, D].

    weight [(Hq + 2 Hkv) * D, H] and bias: of q, k and v above each other. cos and sin [P, D] are tables by position, in
    the half-split layout of transformers; positions [M] int64 index them. Pages and write_index as in `store_kv`. The
    tables, positions and write_index may be read while the launch before this one still runs: it must not write them.
    q_norm, k_norm [D]: RMS norms over each head before rotation (Qwen 3). RoPE: Su et al., arXiv 2104.09864.
    """
    values = x.values if isinstance(x, Normed) else x
    function = implementation("layers.linear", values, "linear_rope_store_kv")
    result: Tensor = function(
        x, weight, bias, cos, sin, positions, k_pages, v_pages, write_index,
        q_heads=q_heads, q_norm=q_norm, k_norm=k_norm, eps=eps,
    )  # fmt: skip
    return result
