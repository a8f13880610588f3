"""RMS norm of whole rows, alone or after the addition of a residual, in 16 or 8 bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantized.quantize_rows import empty_fp8_rows, store_fp8_row
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.weights import Fp8Rows


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, h_out, out, out_scale, eps, stride_x, stride_residual,
    H: tl.constexpr, BLOCK: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < H
    norm_weight = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    h = tl.load(x + row * stride_x + lane, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        h += tl.load(residual + row * stride_residual + lane, mask=inside, other=0.0).to(tl.float32)
        rounded = h.to(h_out.dtype.element_ty)
        tl.store(h_out + row * H + lane, rounded, mask=inside)
        h = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(h * h, 0) / H + eps)
    if out_scale is not None:
        store_fp8_row(h * norm_weight, factor, out, out_scale, row, lane, inside, H)
    else:
        tl.store(out + row * H + lane, (h * factor * norm_weight).to(out.dtype.element_ty), mask=inside)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, values: Tensor, scale: Tensor | None
) -> Tensor:
    """Writes the norm of x + residual to values, and to scale if they are in 8 bits. Returns the sum."""
    rows, hidden = x.shape
    h = x if residual is None else torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    if rows:
        block = power_of_2(hidden)
        _rms_norm_kernel[(rows,)](
            x, x if residual is None else residual, weight, h, values, scale, eps, x.stride(0),
            0 if residual is None else residual.stride(0), H=hidden, BLOCK=block, RESIDUAL=residual is not None,
            num_warps=max(1, min(8, block // 512)), **launch_options(x),
        )  # fmt: skip
    return h


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `specpipe_kernels.rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, eps, out, None)
    return out


def rms_norm_fp8(x: Tensor, weight: Tensor, eps: float) -> Fp8Rows:
    """See `specpipe_kernels.rms_norm_fp8`."""
    out = empty_fp8_rows(x.shape[0], x.shape[1], x)
    _launch(x, None, weight, eps, out.values, out.scale)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, fp8: bool = False
) -> tuple[Tensor, Tensor | Fp8Rows]:
    """Returns h = x + residual [M, H] and the RMS norm of h [M, H], for weight [H]; fp8: in 8 bits, one scale a row."""
    if fp8:
        eight = empty_fp8_rows(x.shape[0], x.shape[1], x)
        return _launch(x, residual, weight, eps, eight.values, eight.scale), eight
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _launch(x, residual, weight, eps, out, None), out
