"""Device functions for the random streams of `specpipe_kernels.reference.sampling.philox`.

Bit for bit the same up to `uniform_of`. Nothing here needs libdevice, so Triton's interpreter runs it too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import LN_2, fast_log2, fast_log2_of_minus

BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)
INV_2_32 = tl.constexpr(2.0**-32)
SERIES_BELOW = tl.constexpr(0.0625)
# -log2(1 - u) / u there is 1 / ln 2 + … u + … u² + … u³, with the least relative error, 3e-8.
_C0, _C1 = tl.constexpr(-1.4426950408889634), tl.constexpr(-0.7213619)
_C2, _C3 = tl.constexpr(-0.47951570), tl.constexpr(-0.39794493)
_MINUS_LOG_LN_2 = tl.constexpr(0.36651292058166435)
CHUNK_COUNTERS = tl.constexpr(2**30)  # above every token id // 4
_M0, _M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_W0, _W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def _round(c0, c1, c2, c3, k0, k1):
    # 64-bit products: one multiplication gives both halves of it.
    a, b = c0.to(tl.uint64) * _M0, c2.to(tl.uint64) * _M1
    return (b >> 32).to(tl.uint32) ^ c1 ^ k0, b.to(tl.uint32), (a >> 32).to(tl.uint32) ^ c3 ^ k1, a.to(tl.uint32)


@triton.jit
def _words(chunk, seed, position, index, purpose):
    c0, c1 = chunk.to(tl.uint32), position.to(tl.uint32)
    c2 = (tl.zeros([], tl.int32) + index).to(tl.uint32)
    c3 = (tl.zeros([], tl.int32) + purpose).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed.to(tl.uint64) >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 = (k0.to(tl.uint64) + _W0).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + _W1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def uniform_of(words):
    """Maps 32-bit words to fp32 in (0, 1), with full relative precision near 0."""
    return tl.minimum(words.to(tl.uint32).to(tl.float32) * INV_2_32 + 0.5 * INV_2_32, BELOW_ONE)


@triton.jit
def log2_of_complement(u):
    """Returns log2(1 - u), by a polynomial for small u, where the difference would cancel."""
    near = u * (_C0 + u * (_C1 + u * (_C2 + u * _C3)))
    return tl.where(u < SERIES_BELOW, near, fast_log2(1.0 - u))


@triton.jit
def exponential_of(u):
    """Returns -log1p(-u)."""
    return log2_of_complement(u) * -LN_2


@triton.jit
def gumbel_of(u):
    """Returns -log(-log1p(-u))."""
    return fast_log2_of_minus(log2_of_complement(u)) * -LN_2 + _MINUS_LOG_LN_2


@triton.jit
def lag_of(u):
    """Returns Gumbel noise in base 2, negated, up to a constant: the largest of log2 p - lag is a draw from p."""
    return fast_log2_of_minus(log2_of_complement(u))


@triton.jit
def uniform(seed, position, index, purpose):
    """Returns one fp32 uniform for every element of the tensor `index`."""
    w0, _, _, _ = _words(tl.zeros_like(index), seed, position, index, purpose)
    return uniform_of(w0)


@triton.jit
def uniform_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """Returns [BLOCK] uniforms of the vocabulary entries from `start`, a multiple of 4."""
    chunk = start // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = _words(chunk, seed, position, index, purpose)
    return uniform_of(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def exponential_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """Returns [BLOCK] unit exponentials; see `uniform_tile`."""
    return exponential_of(uniform_tile(seed, position, index, purpose, start, BLOCK))


@triton.jit
def lag_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """Returns [BLOCK] draws of noise for scores in base 2; see `lag_of` and `uniform_tile`."""
    return lag_of(uniform_tile(seed, position, index, purpose, start, BLOCK))


@triton.jit
def chunk_gumbel(seed, position, index, purpose, chunk):
    """Returns one standard Gumbel draw for every vocabulary chunk in the tensor `chunk`."""
    w0, _, _, _ = _words(chunk + CHUNK_COUNTERS, seed, position, index, purpose)
    return gumbel_of(uniform_of(w0))
