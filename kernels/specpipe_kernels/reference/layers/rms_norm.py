"""RMS norm in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.types import Fp8Rows


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, fp8: bool = False) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.rms_norm`."""
    h = x.to(torch.float32)
    factor = torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    if fp8:
        rows = quantize_rows(h * weight.float(), x.shape[1])
        return rows._replace(scale=rows.scale * factor.t(), dtype=x.dtype)
    return (h * factor * weight).to(x.dtype)
