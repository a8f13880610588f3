"""Device functions: the streams of `specpipe_kernels.reference.philox`, bit for bit up to `uniform_of`.

Nothing here needs libdevice, so that Triton's interpreter runs it too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.triton_ops.fast_math import fast_log

BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)
INV_2_32 = tl.constexpr(2.0**-32)
SERIES_BELOW = tl.constexpr(0.0625)
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
    """32-bit words to fp32 in (0, 1), full relative precision near 0."""
    return tl.minimum((words.to(tl.uint32).to(tl.float32) + 0.5) * INV_2_32, BELOW_ONE)


@triton.jit
def exponential_of(u):
    """-log1p(-u): a series where log(1 - u) would cancel."""
    series = u * (1.0 + u * (0.5 + u * (1 / 3 + u * (0.25 + u * (0.2 + u * (1 / 6))))))
    return tl.where(u < SERIES_BELOW, series, -fast_log(1.0 - u))


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
def least_of_fours(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """[BLOCK // 4] least of the words of each four vocabulary entries from `start`, a multiple of 4, as fp32."""
    chunk = start // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = _words(chunk, seed, position, index, purpose)
    return tl.minimum(tl.minimum(w0, w1), tl.minimum(w2, w3)).to(tl.float32)


@triton.jit
def gumbel_tile(seed, position, index, purpose, start, BLOCK: tl.constexpr):
    """[BLOCK] standard Gumbel draws of the vocabulary entries from `start`, a multiple of 4."""
    return -fast_log(exponential_tile(seed, position, index, purpose, start, BLOCK))


@triton.jit
def gumbel_of_token(seed, position, index, purpose, token):
    """The standard Gumbel draw of one vocabulary entry."""
    w0, w1, w2, w3 = _words(token // 4, seed, position, index, purpose)
    word = tl.where(token % 4 < 2, tl.where(token % 4 == 0, w0, w1), tl.where(token % 4 == 2, w2, w3))
    return -fast_log(exponential_of(uniform_of(word)))


@triton.jit
def chunk_gumbel(seed, position, index, purpose, chunk):
    """One standard Gumbel draw for every chunk of the vocabulary named in `chunk`, a tensor."""
    w0, _, _, _ = _words(chunk + CHUNK_COUNTERS, seed, position, index, purpose)
    return -fast_log(exponential_of(uniform_of(w0)))
