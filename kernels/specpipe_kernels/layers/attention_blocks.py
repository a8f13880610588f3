"""Parts of the attention kernels: queries, blocks of keys and values, the online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

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
def load_block(pages, line, block, length, SIZES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the positions [BLOCK_N] of a block of keys, its keys [K_PAD, BLOCK_N] and values [BLOCK_N, V_PAD].

    line: page * heads + head.
    """
    slot = tl.arange(0, BLOCK_N)
    k_dim = tl.arange(0, SIZES.k_pad)
    v_dim = tl.arange(0, SIZES.v_pad)
    kv = block * BLOCK_N + slot
    valid = kv < length  # stale memory may hold NaN and is never loaded
    place = line.to(tl.int64) * SIZES.page_size + block * BLOCK_N % SIZES.page_size
    k_at = pages.k_pages + place * SIZES.k_dim + (slot[None, :] * SIZES.k_dim + k_dim[:, None])
    k = tl.load(k_at, mask=valid[None, :] & (k_dim[:, None] < SIZES.k_dim), other=0.0)
    v_at = pages.v_pages + place * SIZES.v_dim + (slot[:, None] * SIZES.v_dim + v_dim[None, :])
    v = tl.load(v_at, mask=valid[:, None] & (v_dim[None, :] < SIZES.v_dim), other=0.0)
    return kv, k, v


@triton.jit
def scale_logits(s, logits, SOFTCAP: tl.constexpr):
    """Returns base-2 logits of products s: the host folds log2(e) into the factors."""
    s *= logits.scale
    if SOFTCAP:
        s = logits.softcap * (1.0 - 2.0 / (tl.exp(2.0 * s) + 1.0))  # softcap * tanh(s)
    return s


@triton.jit
def add_block(s, v, top, total, acc, DEFER_SUM: tl.constexpr):
    """Adds a block of logits s [BLOCK_M, BLOCK_N] and values v to the online softmax; returns its new state."""
    new_top = tl.maximum(top, tl.max(s, 1))
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)  # no visible key yet: exp2(-inf - 0) is 0
    p = tl.exp2(s - anchor[:, None])
    shrink = tl.exp2(top - anchor)
    total = total * shrink[:, None] + p if DEFER_SUM else total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def merge_part(other_top, other_total, other_acc, top, total, acc):
    """Adds another part [BLOCK_M], [BLOCK_M], [BLOCK_M, V_PAD] to the online softmax; returns its new state."""
    new_top = tl.maximum(top, other_top)
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink, other_shrink = tl.exp2(top - anchor), tl.exp2(other_top - anchor)
    total = total * shrink + other_total * other_shrink
    acc = acc * shrink[:, None] + other_acc * other_shrink[:, None]
    return new_top, total, acc
