"""Activations in 8 bits: rounding and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.weights import Fp8Rows

LARGEST = 448.0  # of float8_e4m3fn


def fp8_scale(largest: Tensor) -> Tensor:
    """Returns the smallest powers of two in fp32, at least 2**-126, by which `largest` is 448 or less; 1 for 0."""
    mantissa, exponent = torch.frexp(largest.float().clamp(min=2.0**-126) / LARGEST)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(min=-126)
    return torch.where(largest == 0, 1.0, torch.ldexp(torch.ones_like(mantissa), exponent))


def quantize_rows(x: Tensor, group: int) -> Fp8Rows:
    """Rounds x [M, K] to nearest, with a scale for every `group` columns of a row."""
    rows, columns = x.shape
    groups = -(-columns // group)
    by_group = functional.pad(x.float(), (0, groups * group - columns)).view(rows, groups, group)
    scale = fp8_scale(by_group.abs().amax(-1))
    values = (by_group / scale[..., None]).clamp(-LARGEST, LARGEST).view(rows, -1)[:, :columns]
    return Fp8Rows(values.to(torch.float8_e4m3fn).contiguous(), scale.t().contiguous(), group, x.dtype)


def dequantize_rows(x: Fp8Rows, dtype: torch.dtype) -> Tensor:
    """Returns the rows [M, K] in dtype; a pending norm stays pending."""
    scale = x.scale.t().repeat_interleave(x.group, 1)[:, : x.values.shape[1]]
    return (x.values.float() * scale).to(dtype)
