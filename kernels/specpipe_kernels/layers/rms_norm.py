"""RMS norm of whole rows, alone or after the addition of a residual."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, h_out, out, eps, stride_x, stride_residual,
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
    scale = tl.rsqrt(tl.sum(h * h, 0) / H + eps)
    tl.store(out + row * H + lane, (h * scale * norm_weight).to(out.dtype.element_ty), mask=inside)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns x + residual and its norm; without a residual the norm twice."""
    rows, hidden = x.shape
    out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    h = torch.empty_like(out) if residual is not None else out
    if rows:
        block = power_of_2(hidden)
        _rms_norm_kernel[(rows,)](
            x, x if residual is None else residual, weight, h, out, eps, x.stride(0),
            0 if residual is None else residual.stride(0), H=hidden, BLOCK=block, RESIDUAL=residual is not None,
            num_warps=max(1, min(8, block // 512)), **launch_options(x),
        )  # fmt: skip
    return h, out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `specpipe_kernels.rms_norm`."""
    return _launch(x, None, weight, eps)[1]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns h = x + residual [M, H] and the RMS norm of h [M, H], for weight [H]."""
    return _launch(x, residual, weight, eps)
