"""Attention over paged KV memory for ragged rows: one kernel for prefill and decoding.

A program processes one tile of one row's queries for one KV head: BLOCK_M = queries x G entries, G being the query
heads that share a KV head. A decoding step of few tokens thereby fills a matrix tile and reads every key once. The
program loops over the row's keys, BLOCK_N of a page at a time, up to the length on the device: neither a launch nor a
CUDA graph depends on the context length.

Few rows cannot fill a GPU. Then SPLITS programs share the blocks of a row, and each stores its part of the online
softmax (maximum, sum, accumulator); the last one to arrive combines the parts in a fixed order (Flash-Decoding without
its second kernel). SPLITS depends on shapes alone; the device computes how many of the splits have work.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.attention_blocks import (
    STAGE_BYTES,
    add_block,
    join_sums,
    load_block,
    load_page,
    load_queries,
    merge_part,
    multiply_keys,
    prepare_queries,
    scale_logits,
    zero_sums,
)
from specpipe_kernels.layers.layer_args import (
    AttentionSizes,
    LogitArgs,
    PageArgs,
    PrefixParts,
    QueryArgs,
    SplitParts,
)
from specpipe_kernels.layers.prefix_attention import attend_prefixes
from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.layers.quantized.quantize_rows import quantize_rows
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import UNSCALED, KVScales, PrefixArgs
from specpipe_kernels.weights import MAX_FP8_ROWS, Fp8Rows

_SHORT_QUERIES = 512
"""Tokens of a row up to which prefills load half a page at a time. Measured on an H200: 85 rows of 96 tokens behind
1,024 shared ones 544 -> 403 us, 4 rows of 512 42.7 -> 40.8, but 1 row of 2,048 277 -> 294."""
NO_PREFIX = PrefixParts(None, None, None, None, None)
LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def _find_row(cu_queries, tile, rows, BLOCK_Q: tl.constexpr):
    """Returns the last row whose first tile, cu_queries[r] // BLOCK_Q + r, is not beyond `tile`."""
    low = 0
    high = rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_queries + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _zero_unowned(
    out, out_scale, tile, tiles, head, first, num_tokens,
    Q_HEADS: tl.constexpr, G: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Stores zeros for the tokens at the end that belong to no row; usually there are none."""
    dim = tl.arange(0, V_PAD)
    for token in range(first + tile, num_tokens, tiles):
        for g in range(G):
            entry = tl.zeros([V_PAD], tl.int64) + token * Q_HEADS + head * G + g
            tl.store(out + entry * V_DIM + dim, tl.zeros([V_PAD], out.dtype.element_ty), mask=dim < V_DIM)
            if out_scale is not None:
                tl.store(out_scale + (head * G + g) * num_tokens + token, 1.0)


@triton.jit
def _masked_logits(s, factor, logits, position, last, kv, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """Returns base-2 logits [BLOCK_M, BLOCK_N] of products s, -inf where the mask hides the key.

    last [BLOCK_M]: the last existing key that each query attends to.
    """
    s = scale_logits(s, factor, logits, SOFTCAP)
    seen = kv[None, :] <= last[:, None]
    if WINDOW > 0:
        seen &= kv[None, :] > position[:, None] - WINDOW
    return tl.where(seen, s, float("-inf"))


@triton.jit
def _add_sinks(sinks, head, valid, top, total, acc):
    """Adds each head's sink, a logit without a value, to the online softmax."""
    sink = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
    anchor = tl.maximum(top, sink)
    total = total * tl.exp2(top - anchor) + tl.exp2(sink - anchor)
    return total, acc * tl.exp2(top - anchor)[:, None]


@triton.jit
def _store_part(top, total, acc, parts, tile_head, split, at_m, at, BLOCK_M: tl.constexpr, V_PAD: tl.constexpr):
    """Stores the part of one split, and returns the number of splits of the tile that were stored before.

    at_m [BLOCK_M] and at [BLOCK_M, V_PAD]: places of the tile's first part.
    """
    tl.store(parts.top + at_m + split * BLOCK_M, top)
    tl.store(parts.total + at_m + split * BLOCK_M, total)
    tl.store(parts.acc + at + split * (BLOCK_M * V_PAD), acc)
    tl.debug_barrier()
    return tl.atomic_add(parts.arrivals + tile_head, 1, sem="acq_rel")


@triton.jit
def _combine_parts(parts, sharing, at_m, at, BLOCK_M: tl.constexpr, V_PAD: tl.constexpr, SPLITS: tl.constexpr):
    """Returns maximum and sum [BLOCK_M] and accumulator [BLOCK_M, V_PAD] of the first `sharing` splits of a tile."""
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)
    for other in tl.static_range(SPLITS):  # unrolled: all loads are in flight together
        has_part = other < sharing
        other_top = tl.load(
            parts.top + at_m + other * BLOCK_M, mask=has_part, other=float("-inf"), cache_modifier=".cg"
        )
        other_total = tl.load(parts.total + at_m + other * BLOCK_M, mask=has_part, other=0.0, cache_modifier=".cg")
        other_acc = tl.load(parts.acc + at + other * (BLOCK_M * V_PAD), mask=has_part, other=0.0, cache_modifier=".cg")
        top, total, acc = merge_part(other_top, other_total, other_acc, top, total, acc)
    return top, total, acc


@triton.jit
def _merge_prefix(prefix, pages, token, num_tokens, head, valid, top, total, acc, SIZES: tl.constexpr):
    """Adds the parts of a row's shared pages, so many, to the online softmax; returns its new state."""
    v_dim = tl.arange(0, SIZES.v_pad)
    for split in range(tl.cdiv(pages, tl.load(prefix.chunk))):
        at = (split * num_tokens + token) * SIZES.q_heads + head
        acc_at = prefix.acc + at[:, None] * SIZES.v_dim + v_dim[None, :]
        other_top = tl.load(prefix.top + at, mask=valid, other=float("-inf"))
        other_total = tl.load(prefix.total + at, mask=valid, other=0.0)
        other_acc = tl.load(acc_at, mask=valid[:, None] & (v_dim[None, :] < SIZES.v_dim), other=0.0)
        top, total, acc = merge_part(other_top, other_total, other_acc, top, total, acc)
    return top, total, acc


@triton.jit(do_not_specialize=["num_tokens", "rows", "width", "tiles", "stride_table"])
def _paged_attention_kernel(
    pages, prefix, out, out_scale, parts, logits, num_tokens, rows, width, tiles, queries, stride_table,
    SIZES: tl.constexpr, TILES: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ROW_TILES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    Q_HEADS: tl.constexpr = SIZES.q_heads
    KV_HEADS: tl.constexpr = SIZES.kv_heads
    V_DIM: tl.constexpr = SIZES.v_dim
    V_PAD: tl.constexpr = SIZES.v_pad
    PAGE_SIZE: tl.constexpr = SIZES.page_size
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    SHARED: tl.constexpr = prefix.pages is not None
    if not SHARED:
        wait_for_inputs(PDL)
    G: tl.constexpr = Q_HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // G
    # One sum over the keys after the loop instead of one per block, where registers can hold the sums of each column.
    DEFER_SUM: tl.constexpr = (SPLITS == 1) & (BLOCK_M <= 32)
    tile_head = tl.program_id(0)
    tile = tile_head // KV_HEADS
    kv_head = tile_head % KV_HEADS
    split = tl.program_id(1)
    row = (
        tile if ROW_TILES else _find_row(queries.cu_queries, tile, rows, BLOCK_Q)
    )  # ROW_TILES: every row fits into one tile
    # These loads do not depend on each other: all are in flight before the first result is used.
    end_of_rows = tl.load(queries.cu_queries + rows)
    row_first = tl.load(queries.cu_queries + row)
    row_end = tl.load(queries.cu_queries + row + 1)
    start = tl.load(queries.starts + row).to(tl.int32)
    table = pages.tables + row.to(tl.int64) * stride_table
    if SHARED:
        shared_pages = tl.load(prefix.pages + row).to(tl.int32)
    if WINDOW == 0 and not SHARED:
        page = load_page(table, split, width, SIZES, BLOCK_N)
        next_page = load_page(table, split + SPLITS, width, SIZES, BLOCK_N)
    if split == 0:
        _zero_unowned(out, out_scale, tile, tiles, kv_head, end_of_rows, num_tokens, Q_HEADS, G, V_DIM, V_PAD)
    offset = 0
    if not ROW_TILES:
        offset = (tile - (row_first // BLOCK_Q + row)) * BLOCK_Q
    count = row_end - row_first
    if offset >= count:
        return

    m = tl.arange(0, BLOCK_M)
    local = offset + m // G
    head = kv_head * G + m % G
    valid = (m < BLOCK_Q * G) & (local < count)
    token = (row_first + local).to(tl.int64)
    position = tl.where(valid, start + local, -1)
    v_dim = tl.arange(0, V_PAD)
    q = load_queries(queries, token, head, valid, SIZES)
    q, q_odd, factor = prepare_queries(q, pages, logits, kv_head, SIZES)

    # The visible blocks of keys of this tile; a split processes every SPLITS-th of them.
    length = tl.minimum(start + tl.minimum(count, offset + BLOCK_Q), width * PAGE_SIZE)
    end = tl.cdiv(tl.maximum(length, 0), BLOCK_N)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(start + offset - WINDOW + 1, 0) // BLOCK_N
    if SHARED:
        begin = tl.maximum(begin, shared_pages * (PAGE_SIZE // BLOCK_N))
    if SPLITS > 1:
        sharing = tl.minimum(tl.maximum(end - begin, 1), SPLITS)
        if split >= sharing:
            return
    first = begin + split
    if WINDOW > 0 or SHARED:
        page = load_page(table, first, width, SIZES, BLOCK_N)
        next_page = load_page(table, first + SPLITS, width, SIZES, BLOCK_N)
    line = page * KV_HEADS + kv_head
    last = tl.minimum(position, length - 1)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N] if DEFER_SUM else [BLOCK_M], tl.float32)
    acc, acc_odd = zero_sums(pages, SIZES, BLOCK_M)
    for block in range(first, end, SPLITS):
        kv, k, v = load_block(pages, line, block, length, SIZES, BLOCK_N)
        # Page numbers are loaded explicitly, two blocks ahead. If they were loaded here, Triton's pipeline would
        # prefetch page numbers and keep a single buffer for keys and values, refilled only after its use.
        line = next_page * KV_HEADS + kv_head
        next_page = load_page(table, block + 2 * SPLITS, width, SIZES, BLOCK_N)
        s = multiply_keys(q, q_odd, k)
        s = _masked_logits(s, factor, logits, position, last, kv, WINDOW, SOFTCAP)
        top, total, acc, acc_odd = add_block(s, v, top, total, acc, acc_odd, q.dtype, DEFER_SUM)
    acc = join_sums(acc, acc_odd, SIZES)
    if DEFER_SUM:
        total = tl.sum(total, 1)

    if SHARED:  # queries and own pages were complete before the previous kernel, which attends to shared pages, began
        wait_for_inputs(PDL)
    let_next_start(PDL)
    if SPLITS > 1:
        at_m = tile_head * SPLITS * BLOCK_M + m
        at = at_m[:, None] * V_PAD + v_dim[None, :]
        if sharing > 1:
            arrived = _store_part(top, total, acc, parts, tile_head, split, at_m, at, BLOCK_M, V_PAD)
            if arrived < sharing - 1:
                return
            tl.store(parts.arrivals + tile_head, 0)
            top, total, acc = _combine_parts(parts, sharing, at_m, at, BLOCK_M, V_PAD, SPLITS)
    if SHARED:
        top, total, acc = _merge_prefix(prefix, shared_pages, token, num_tokens, head, valid, top, total, acc, SIZES)
    if logits.sinks is not None:
        total, acc = _add_sinks(logits.sinks, head, valid, top, total, acc)
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    if pages.v_scale is not None:
        acc *= tl.load(pages.v_scale + kv_head)
    out_at = out + (token * Q_HEADS + head)[:, None] * V_DIM + v_dim[None, :]
    mask = valid[:, None] & (v_dim[None, :] < V_DIM)
    if out_scale is not None:
        acc = tl.where(mask, acc, 0.0).to(queries.query.dtype.element_ty).to(tl.float32)  # as if it had been stored
        scale = fp8_scale(tl.max(tl.abs(acc), 1))
        tl.store(out_at, to_fp8(acc, scale[:, None]), mask=mask)
        tl.store(out_scale + head * num_tokens + token, scale, mask=valid)
    else:
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=mask)


class AttentionTiling(NamedTuple):
    """Tile sizes of attention; chosen from shapes alone, measured on an H200 (docs/notebook.md)."""

    block_m: int
    """Queries of a tile, times query heads per KV head."""
    block_n: int
    """Keys per iteration: a page or a part of one."""
    splits: int
    """Programs that share a row."""
    warps: int
    stages: int


def _processors(device: torch.device) -> int:
    """Returns the number of multiprocessors; without a GPU (the interpreter) 16, so that small cases split."""
    return 16 if gpu_of(device) is None else processors(device)


def attention_tiling(
    query: Tensor, k_pages: Tensor, v_pages: Tensor, rows: int, width: int, max_queries: int
) -> AttentionTiling:
    """Returns the tile sizes for `rows` rows of at most max_queries tokens each, with tables of `width` entries."""
    tokens, q_heads, _ = query.shape
    _, kv_heads, page_size, k_dim = k_pages.shape
    group, itemsize = q_heads // kv_heads, query.element_size()
    # Limited by registers; exact fp32 products have no tensor cores and unroll into megabytes of code in larger tiles.
    max_block_m = (128 if itemsize == 2 else 32) * 128 // max(128, power_of_2(k_dim))
    needed = min(power_of_2(max(1, max_queries) * group), max_block_m, 64)
    block_m = max(16, needed, power_of_2(group))
    programs = _tiles(tokens, rows, max_queries, block_m // group) * kv_heads
    available = _processors(query.device)
    short = block_m == 16 or (max_queries <= _SHORT_QUERIES and k_pages.element_size() == 2)
    if short and programs > 3 * available:  # more than fit at once with two pages each: smaller stages
        # Two warps for 32 queries times heads, 16 each: 64 rows of 4 queries take 38 us, 45 with four warps.
        return AttentionTiling(block_m, min(32, page_size), 1, 2 if block_m <= 32 else 4, 3)
    # One program per processor; combining the parts of a shared row costs as much as two or three pages. More parts
    # than pages would have no work. Pages in 8 bits are half the bytes in flight: four programs per processor (16 rows
    # of 8,000 tokens: 95 us with one, 69 with four).
    per_processor = 4 if block_m == 16 and k_pages.element_size() == 1 else 1
    spare = max(1, available * per_processor // max(1, programs))
    splits = min(8 if width <= 64 else 16, 1 << (spare.bit_length() - 1), power_of_2(width))
    page_bytes = page_size * k_pages.element_size() * (power_of_2(k_dim) + power_of_2(v_pages.shape[3]))
    stages = max(1, min(3, STAGE_BYTES // page_bytes))
    return AttentionTiling(block_m, page_size, splits, 8 if block_m > 64 else 4, stages)


def _tiles(tokens: int, rows: int, max_queries: int, block_q: int) -> int:
    """Returns the number of tiles of block_q queries: one per row if every row fits, else an upper bound."""
    return rows if max_queries <= block_q else tokens // block_q + rows


def paged_attention(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    cu_queries: Tensor,
    starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    prefix: PrefixArgs | None = None,
    scales: KVScales = UNSCALED,
    fp8: bool = False,
    tiles: AttentionTiling | None = None,
) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.paged_attention`. Page sizes are powers of two, 16 or more; tiles: None for `tiling`'s."""
    tokens, q_heads, k_dim = query.shape
    _, kv_heads, page_size, v_dim = v_pages.shape
    rows, width = block_tables.shape
    assert k_pages.is_contiguous() and v_pages.is_contiguous() and k_pages.shape[1:] == (kv_heads, page_size, k_dim)
    assert block_tables.stride(1) == 1 and cu_queries.is_contiguous() and starts.is_contiguous()
    assert q_heads % kv_heads == 0 and page_size >= 16 and page_size & (page_size - 1) == 0
    by_head = fp8 and tokens <= MAX_FP8_ROWS  # products of more rows need one scale a row
    out = query.new_empty(tokens, q_heads, v_dim, dtype=torch.float8_e4m3fn if by_head else query.dtype)
    out_scale = query.new_empty(q_heads, tokens, dtype=torch.float32) if by_head else None
    if tokens == 0:
        return _result(out, out_scale, query.dtype, fp8=fp8)
    tile_sizes = tiles or attention_tiling(query, k_pages, v_pages, rows, width, max_queries)
    block_q = tile_sizes.block_m // (q_heads // kv_heads)
    assert block_q > 0 and page_size % tile_sizes.block_n == 0
    count = _tiles(tokens, rows, max_queries, block_q)
    smallest = 16 if scales.k is None else 32  # a product takes half of the entries in 8 bits
    k_pad, v_pad = max(smallest, power_of_2(k_dim)), max(smallest, power_of_2(v_dim))
    assert scales.k is None or (k_dim % 2 == 0 and v_dim % 2 == 0)
    parts = SplitParts(None, None, None, None)
    if tile_sizes.splits > 1:
        shape = (count * kv_heads, tile_sizes.splits, tile_sizes.block_m)
        acc = query.new_empty(*shape, v_pad, dtype=torch.float32)
        top, total = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
        parts = SplitParts(acc, top, total, arrivals(query, count * kv_heads))
    log2e = math.log2(math.e)
    factors = (scale * log2e, 0.0) if softcap is None else (scale / softcap, softcap * log2e)
    pages, logits = PageArgs(k_pages, v_pages, block_tables, *scales), LogitArgs(sinks, *factors)
    queries = QueryArgs(query, cu_queries, starts, *query.stride())
    sizes = AttentionSizes(q_heads, kv_heads, k_dim, v_dim, k_pad, v_pad, page_size)
    shared = NO_PREFIX
    if prefix is not None:
        shared = attend_prefixes(queries, pages, prefix, logits, sizes, window=window or 0, softcap=softcap is not None)
    _paged_attention_kernel[(count * kv_heads, tile_sizes.splits)](
        pages, shared, out, out_scale, parts, logits, tokens, rows, width, count, queries, block_tables.stride(0),
        SIZES=sizes, TILES=tile_sizes, WINDOW=window or 0, SOFTCAP=softcap is not None,
        ROW_TILES=max_queries <= block_q,
        num_warps=tile_sizes.warps, num_stages=tile_sizes.stages, **launch_options(query),
    )  # fmt: skip
    return _result(out, out_scale, query.dtype, fp8=fp8)


def _result(out: Tensor, scale: Tensor | None, dtype: torch.dtype, *, fp8: bool) -> Tensor | Fp8Rows:
    """Returns out [N, Hq, D of the values], or with fp8 rows of it. scale [Hq, N]: of values in 8 bits."""
    if not fp8:
        return out
    values = out.flatten(1)
    return quantize_rows(values) if scale is None else Fp8Rows(values, scale, out.shape[2], dtype)
