"""Device functions: the streams of `specpipe_kernels.reference.philox`, bit for bit up to `uniform_of`.

Nothing here needs libdevice, so that Triton's interpreter runs it too.
"""

from __future__ import annotations

import triton
import triton.language as tl

BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)
INV_2_32 = tl.constexpr(2.0**-32)
SERIES_BELOW = tl.constexpr(0.0625)


@triton.jit
def _words(chunk, seed, position, index, purpose):
    c1 = position.to(tl.uint32)
    c2 = (tl.zeros([], tl.int32) + index).to(tl.uint32)
    c3 = (tl.zeros([], tl.int32) + purpose).to(tl.uint32)
    return tl.philox(seed.to(tl.uint64), chunk.to(tl.uint32), c1, c2, c3, n_rounds=10)


@triton.jit
def uniform_of(words):
    """32-bit words to fp32 in (0, 1), full relative precision near 0."""
    return tl.minimum((words.to(tl.uint32).to(tl.float32) + 0.5) * INV_2_32, BELOW_ONE)


@triton.jit
def exponential_of(u):
    """-log1p(-u): a series where log(1 - u) would cancel."""
    series = u * (1.0 + u * (0.5 + u * (1 / 3 + u * (0.25 + u * (0.2 + u * (1 / 6))))))
    return tl.where(u < SERIES_BELOW, series, -tl.log(1.0 - u))


@triton.jit
def uniform(seed, position, index, purpose):
    """One fp32 uniform for every element of `index` (a tensor)."""
    w0, _, _, _ = _words(tl.zeros_like(index), seed, position, index, purpose)
    return uniform_of(w0)


@triton.jit
def exponential_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """[BLOCK] unit exponentials of the vocabulary entries from `start`, a multiple of 4."""
    chunk = start // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = _words(chunk, seed, position, index, purpose)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return exponential_of(uniform_of(words))


@triton.jit
def gumbel_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """[BLOCK] standard Gumbel draws of the vocabulary entries from `start`, a multiple of 4."""
    return -tl.log(exponential_tile(seed, position, index, purpose, start, BLOCK))
