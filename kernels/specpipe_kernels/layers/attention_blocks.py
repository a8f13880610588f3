"""Parts of the attention kernels: queries, blocks of keys and values, the online softmax.

Pages in 8 bits (float8_e4m3fn) are read as int16: a pair of neighbouring entries of a head. Even and odd entries are
unpacked to fp16 tensors of their own and take one product each. So matrix tiles are loaded by the instructions for 16
bits, of which those for values have no counterpart for 8 (docs/notebook.md).
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.layers.quantized.page_entries import unpack_pairs

STAGE_BYTES = 160 * 1024  # of shared memory for pages in flight; an H100 or H200 has 227 KB a block, an A100 163 KB


@triton.jit
def load_page(table, block, width, SIZES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the page that holds a block of keys; the trash page beyond the table."""
    column = block * BLOCK_N // SIZES.page_size
    return tl.load(table + column, mask=column < width, other=0)


@triton.jit
def load_queries(queries, token, head, valid, SIZES: tl.constexpr):
    """Returns the queries [BLOCK_M, K_PAD] of the entries (token, head); 0 where not valid."""
    dim = tl.arange(0, SIZES.k_pad)
    at = queries.query + token[:, None] * queries.stride_n + head[:, None] * queries.stride_h
    at += dim[None, :] * queries.stride_d
    return tl.load(at, mask=valid[:, None] & (dim[None, :] < SIZES.k_dim), other=0.0)


@triton.jit
def prepare_queries(q, pages, logits, kv_head, SIZES: tl.constexpr):
    """Returns queries as `multiply_keys` takes them, and the factor of their products, a scalar or [BLOCK_M, 1].

    For pages in 16 bits, q and its factor as they are, q twice. For pages in 8 bits, the even and the odd entries
    [BLOCK_M, K_PAD / 2] in fp16, where bf16 could overflow: each query is divided by a power of two, so that its
    largest entry lies in [2^14, 2^15). Entries stay exact down to 2^-31 of it, below the rounding of the sums.
    """
    factor = logits.scale
    odd = q
    if pages.k_scale is not None:
        factor = factor * tl.load(pages.k_scale + kv_head)
        if q.dtype == tl.bfloat16:
            wide = q.to(tl.float32)
            exponent = (tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) >> 23) - 14  # biased
            exponent = tl.minimum(tl.maximum(exponent, 1), 253)[:, None]
            q = (wide * ((254 - exponent) << 23).to(tl.float32, bitcast=True)).to(tl.float16)
            factor = factor * (exponent << 23).to(tl.float32, bitcast=True)
        PAIRS: tl.constexpr = SIZES.k_pad // 2
        q, odd = q.reshape(q.shape[0], PAIRS, 2).split()
    return q, odd, factor


@triton.jit
def load_block(pages, line, block, length, SIZES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the positions [BLOCK_N] of a block of keys, its keys [K_PAD, BLOCK_N] and values [BLOCK_N, V_PAD].

    line: page * heads + head. Pages in 8 bits give pairs, int16 [K_PAD / 2, BLOCK_N] and [BLOCK_N, V_PAD / 2].
    """
    PAIRS: tl.constexpr = 1 if pages.k_scale is None else 2
    K_DIM: tl.constexpr = SIZES.k_dim // PAIRS
    V_DIM: tl.constexpr = SIZES.v_dim // PAIRS
    k_pages = pages.k_pages
    v_pages = pages.v_pages
    if PAIRS == 2:
        k_pages = k_pages.to(tl.pointer_type(tl.int16), bitcast=True)
        v_pages = v_pages.to(tl.pointer_type(tl.int16), bitcast=True)
    slot = tl.arange(0, BLOCK_N)
    k_dim = tl.arange(0, SIZES.k_pad // PAIRS)
    v_dim = tl.arange(0, SIZES.v_pad // PAIRS)
    kv = block * BLOCK_N + slot
    valid = kv < length  # stale memory may hold NaN and is never loaded
    place = line.to(tl.int64) * SIZES.page_size + block * BLOCK_N % SIZES.page_size
    k_at = k_pages + place * K_DIM + (slot[None, :] * K_DIM + k_dim[:, None])
    k = tl.load(k_at, mask=valid[None, :] & (k_dim[:, None] < K_DIM), other=0)
    v_at = v_pages + place * V_DIM + (slot[:, None] * V_DIM + v_dim[None, :])
    v = tl.load(v_at, mask=valid[:, None] & (v_dim[None, :] < V_DIM), other=0)
    return kv, k, v


@triton.jit
def multiply_keys(q, odd, k):
    """Returns products [BLOCK_M, BLOCK_N] of queries and a block of keys. q, odd: of `prepare_queries`."""
    if k.dtype == tl.int16:
        low, high = unpack_pairs(k)
        s = tl.dot(q, low.to(q.dtype), input_precision="ieee")
        s = tl.dot(odd, high.to(q.dtype), s, input_precision="ieee")
    else:
        s = tl.dot(q, k, input_precision="ieee")
    return s


@triton.jit
def scale_logits(s, factor, logits, SOFTCAP: tl.constexpr):
    """Returns base-2 logits of products s: the host folds log2(e) into the factors. factor: of `prepare_queries`."""
    s *= factor
    if SOFTCAP:
        s = logits.softcap * (1.0 - 2.0 / (tl.exp(2.0 * s) + 1.0))  # softcap * tanh(s)
    return s


@triton.jit
def zero_sums(pages, SIZES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Returns the accumulators of `add_block`: sums of values [BLOCK_M, V_PAD], and nothing, 0.0.

    For pages in 8 bits, those of the even and of the odd entries, [BLOCK_M, V_PAD / 2] each.
    """
    V_PAD: tl.constexpr = SIZES.v_pad
    if pages.k_scale is not None:
        acc = tl.zeros([BLOCK_M, V_PAD // 2], tl.float32)
        return acc, acc
    else:
        return tl.zeros([BLOCK_M, V_PAD], tl.float32), 0.0


@triton.jit
def add_block(s, v, top, total, acc, odd, DTYPE: tl.constexpr, DEFER_SUM: tl.constexpr):
    """Adds a block of logits s [BLOCK_M, BLOCK_N] and values v to the online softmax; returns its new state.

    acc, odd: of `zero_sums`. DTYPE: number format of the product.
    """
    new_top = tl.maximum(top, tl.max(s, 1))
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)  # no visible key yet: exp2(-inf - 0) is 0
    p = tl.exp2(s - anchor[:, None])
    shrink = tl.exp2(top - anchor)
    total = total * shrink[:, None] + p if DEFER_SUM else total * shrink + tl.sum(p, 1)
    if v.dtype == tl.int16:
        low, high = unpack_pairs(v)
        acc = tl.dot(p.to(DTYPE), low.to(DTYPE), acc * shrink[:, None], input_precision="ieee")
        odd = tl.dot(p.to(DTYPE), high.to(DTYPE), odd * shrink[:, None], input_precision="ieee")
    else:
        acc = tl.dot(p.to(DTYPE), v, acc * shrink[:, None], input_precision="ieee")
    return new_top, total, acc, odd


@triton.jit
def join_sums(acc, odd, SIZES: tl.constexpr):
    """Returns the sums of values [BLOCK_M, V_PAD] of the accumulators of `add_block`."""
    V_PAD: tl.constexpr = SIZES.v_pad
    if acc.shape[1] < V_PAD:
        acc = tl.join(acc, odd).reshape(acc.shape[0], V_PAD)
    return acc


@triton.jit
def merge_part(other_top, other_total, other_acc, top, total, acc):
    """Adds another part [BLOCK_M], [BLOCK_M], [BLOCK_M, V_PAD] to the online softmax; returns its new state."""
    new_top = tl.maximum(top, other_top)
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink, other_shrink = tl.exp2(top - anchor), tl.exp2(other_top - anchor)
    total = total * shrink + other_total * other_shrink
    acc = acc * shrink[:, None] + other_acc * other_shrink[:, None]
    return new_top, total, acc
