"""Rounding to 8 bits, float8_e4m3fn, with scales that are powers of two."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.weights import QuantizedWeight


@triton.jit
def fp8_scale(largest):
    """Returns the smallest powers of two in fp32, at least 2**-126, by which `largest` is 448 or less; 1 for 0.

    largest: fp32, not negative.
    """
    bits = largest.to(tl.int32, bitcast=True)
    # 448 is 1.75 * 2**8: adding 0.25 to the mantissa, less one bit, carries where the mantissa is above 1.75.
    exponent = tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 1)
    return tl.where(bits == 0, 1.0, (exponent << 23).to(tl.float32, bitcast=True))


@triton.jit
def to_fp8(x, scale):
    """Rounds x / scale to e4m3; scale: powers of two in the shape of x or one that broadcasts to it."""
    inverse = (0x7F000000 - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # exact
    return (x * inverse).to(tl.float8e4nv)


def quantize_fp8(weight: Tensor) -> QuantizedWeight:
    """Rounds weight [N, K] to nearest, with one scale per output channel.

    Scales are powers of two, so bf16 and fp32 represent the rounded values exactly. Quantizing the dequantised weight
    changes no entry.
    """
    rows = quantize_rows(weight, weight.shape[1])
    return QuantizedWeight(rows.values, rows.scale.view(-1, 1), None, (1, weight.shape[1]))
