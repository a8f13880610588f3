"""Device functions that pack a value and an index into one 64-bit key, so that one reduction finds both."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _flipped(bits):
    """Maps the bits of floats to signed integers of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def rank(x, numbers):
    """Returns int64 keys, larger for larger fp32 x, then for lower numbers (int32, not negative); -0.0 equals 0.0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return (_flipped(bits).to(tl.int64) << 32) | (0x7FFFFFFF - numbers).to(tl.int64)


@triton.jit
def unrank(key):
    """Returns x and number of int64 keys."""
    x = _flipped((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    return x, 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
