"""RMS norm in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.weights import Fp8Rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `specpipe_kernels.rms_norm`."""
    h = x.to(torch.float32)
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rms_norm_fp8(x: Tensor, weight: Tensor, eps: float) -> Fp8Rows:
    """See `specpipe_kernels.rms_norm_fp8`."""
    h = x.to(torch.float32)
    rows = quantize_rows(h * weight.float(), x.shape[1])
    return rows._replace(scale=rows.scale * torch.rsqrt(h.square().mean(-1) + eps), dtype=x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `specpipe_kernels.add_rms_norm`."""
    h = x + residual
    return h, rms_norm(h, weight, eps)
