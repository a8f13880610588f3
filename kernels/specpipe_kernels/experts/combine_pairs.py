"""Sums the results of each token's experts, alone or with the residual and the next norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantized.quantize_rows import empty_fp8_rows, store_fp8_row
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Fp8Rows

_BLOCK = 1024


@triton.jit
def _combine_pairs_kernel(parts, out, H: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < H
    wait_for_inputs(PDL)
    let_next_start(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TOP_K):
        total += tl.load(parts + (token * TOP_K + i) * H + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * H + lane, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _combine_residual_kernel(
    parts, residual, norm_weight, h_out, out, out_scale, eps, stride_residual,
    H: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < H
    if NORM:
        weight = tl.load(norm_weight + lane, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    h = tl.load(residual + token * stride_residual + lane, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(TOP_K):
        h += tl.load(parts + (token * TOP_K + i) * H + lane, mask=inside, other=0.0).to(tl.float32)
    rounded = h.to(h_out.dtype.element_ty)
    tl.store(h_out + token * H + lane, rounded, mask=inside)
    if NORM:
        h = rounded.to(tl.float32)
        scale = tl.rsqrt(tl.sum(h * h, 0) / H + eps)
        if out_scale is not None:
            store_fp8_row(h * weight, scale, out, out_scale, token, lane, inside, H)
        else:
            tl.store(out + token * H + lane, (h * scale * weight).to(out.dtype.element_ty), mask=inside)


def combine_pairs(parts: Tensor, top_k: int) -> Tensor:
    """Returns the sums [M, H] over the experts of each token. parts: [M * top_k, H], contiguous; sums in fp32."""
    tokens, hidden = parts.shape[0] // top_k, parts.shape[1]
    out = parts.new_empty(tokens, hidden)
    _combine_pairs_kernel[(tokens, cdiv(hidden, _BLOCK))](
        parts, out, H=hidden, TOP_K=top_k, BLOCK=_BLOCK, num_warps=4, **launch_options(parts)
    )
    return out


def combine_residual(
    parts: Tensor, top_k: int, residual: Tensor, norm_weight: Tensor | None, eps: float, *, fp8: bool = False
) -> tuple[Tensor, Tensor | Fp8Rows]:
    """Returns h = residual [M, H] + the sums over the experts of each token, and the RMS norm of h.

    parts: [M * top_k, H], contiguous. norm_weight [H]; without it the second result is h. fp8: the norm is in 8 bits.
    """
    tokens, hidden = residual.shape
    h = parts.new_empty(tokens, hidden)
    normed: Tensor | Fp8Rows = h
    if norm_weight is not None:
        normed = empty_fp8_rows(tokens, hidden, h) if fp8 else torch.empty_like(h)
    out, scale = (normed.values, normed.scale) if isinstance(normed, Fp8Rows) else (normed, None)
    block = power_of_2(hidden)
    _combine_residual_kernel[(tokens,)](
        parts, residual, parts if norm_weight is None else norm_weight, h, out, scale, eps, residual.stride(0),
        H=hidden, TOP_K=top_k, BLOCK=block, NORM=norm_weight is not None, num_warps=max(1, min(8, block // 512)),
        **launch_options(parts),
    )  # fmt: skip
    return h, normed
