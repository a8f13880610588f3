"""Quantisation of weights to 8 bits, float8_e4m3fn, with one scale per output channel."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import QuantizedWeight

LARGEST = 448.0  # of float8_e4m3fn


def quantize_fp8(weight: Tensor) -> QuantizedWeight:
    """Rounds weight [N, K] to nearest. Scales are powers of two, so bf16 and fp32 represent the rounded values exactly.

    Quantisation is idempotent: the dequantised weight gives the same `values` and `scale`.
    """
    _, exponent = torch.frexp(weight.abs().amax(1, keepdim=True).float() / LARGEST)
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    values = (weight.float() / scale).to(torch.float8_e4m3fn)
    return QuantizedWeight(values, scale, None, (1, weight.shape[1]))
