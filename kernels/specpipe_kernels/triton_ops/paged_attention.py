"""Attention over paged KV memory for ragged rows: prefill and decode alike, one kernel.

A program handles one tile of one row's queries for one KV head: BLOCK_M = queries x G entries, G being the query heads
that share a KV head, so that a decode step of few tokens still fills a matrix tile and reads every key once. It loops
over the row's pages by the length on the device: nothing about the context is frozen into a launch or a CUDA graph.

Few rows cannot fill a GPU. Then SPLITS programs share a row's pages and each writes its part of the online softmax
(maximum, sum, accumulator); the last one to arrive combines them in a fixed order (Flash-Decoding without its second
kernel). SPLITS depends on shapes alone; how many pages a split takes is computed on the device.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.backend import gpu_of
from specpipe_kernels.triton_ops.pdl import arrival_counters, launch_options, let_next_start, wait_for_inputs

LOG2E = tl.constexpr(math.log2(math.e))
STAGE_BYTES = 160 * 1024  # of shared memory for pages in flight; an H100 or H200 has 227 KB a block, an A100 163 KB


@triton.jit
def _find_row(cu_queries, tile, rows, BLOCK_Q: tl.constexpr):
    """The last row whose first tile, cu_queries[r] // BLOCK_Q + r, is not beyond `tile`."""
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
    out, tile, tiles, head, first, num_tokens,
    Q_HEADS: tl.constexpr, G: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Zeros for the tokens at the end that belong to no row: as a rule there are none."""
    dim = tl.arange(0, V_PAD)
    for token in range(first + tile, num_tokens, tiles):
        for g in range(G):
            entry = tl.zeros([V_PAD], tl.int64) + token * Q_HEADS + head * G + g
            tl.store(out + entry * V_DIM + dim, tl.zeros([V_PAD], out.dtype.element_ty), mask=dim < V_DIM)


@triton.jit
def _scores(q, k, scale, softcap, position, kv, length, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """Base-2 logits [BLOCK_M, PAGE_SIZE]; -inf where a query must not look. The host folds log2(e) into the factors."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    if SOFTCAP:
        s = softcap * (1.0 - 2.0 / (tl.exp(2.0 * s) + 1.0))  # softcap * tanh(s)
    seen = (kv[None, :] <= position[:, None]) & (kv[None, :] < length)
    if WINDOW > 0:
        seen &= kv[None, :] > position[:, None] - WINDOW
    return tl.where(seen, s, float("-inf"))


@triton.jit(do_not_specialize=["num_tokens", "rows", "width", "tiles", "stride_table"])
def _attention_kernel(
    query, k_pages, v_pages, tables, cu_queries, starts, sinks, out, parts, part_max, part_sum, arrivals,
    scale, softcap, num_tokens, rows, width, tiles, q_stride_n, q_stride_h, q_stride_d, stride_table,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, ROW_TILES: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    G: tl.constexpr = Q_HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // G
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if split == 0:
        end_of_rows = tl.load(cu_queries + rows)
        _zero_unowned(out, tile, tiles, kv_head, end_of_rows, num_tokens, Q_HEADS, G, V_DIM, V_PAD)
    if ROW_TILES:  # every row fits into one tile
        row = tile
        row_first = tl.load(cu_queries + row)
        offset = 0
    else:
        row = _find_row(cu_queries, tile, rows, BLOCK_Q)
        row_first = tl.load(cu_queries + row)
        offset = (tile - (row_first // BLOCK_Q + row)) * BLOCK_Q
    count = tl.load(cu_queries + row + 1) - row_first
    if offset >= count:
        return
    start = tl.load(starts + row).to(tl.int32)

    m = tl.arange(0, BLOCK_M)
    local = offset + m // G
    head = kv_head * G + m % G
    valid = (m < BLOCK_Q * G) & (local < count)
    token = (row_first + local).to(tl.int64)
    position = tl.where(valid, start + local, -1)
    k_dim = tl.arange(0, K_PAD)
    v_dim = tl.arange(0, V_PAD)
    q_at = query + token[:, None] * q_stride_n + head[:, None] * q_stride_h + k_dim[None, :] * q_stride_d
    q = tl.load(q_at, mask=valid[:, None] & (k_dim[None, :] < K_DIM), other=0.0)

    # What this tile can see, then this split's share of it, in pages.
    length = tl.minimum(start + tl.minimum(count, offset + BLOCK_Q), width * PAGE_SIZE)
    end = tl.cdiv(tl.maximum(length, 0), PAGE_SIZE)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(start + offset - WINDOW + 1, 0) // PAGE_SIZE
    if SPLITS > 1:
        share = tl.cdiv(tl.maximum(end - begin, 0), SPLITS)
        begin += split * share
        end = tl.minimum(begin + share, end)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)
    slot = tl.arange(0, PAGE_SIZE)
    table = tables + row.to(tl.int64) * stride_table
    for block in range(begin, end):
        page = tl.load(table + block).to(tl.int64) * KV_HEADS + kv_head
        kv = block * PAGE_SIZE + slot
        fresh = kv < length  # stale memory may hold NaN: it is never loaded
        k_at = k_pages + page * (PAGE_SIZE * K_DIM) + slot[None, :] * K_DIM + k_dim[:, None]
        k = tl.load(k_at, mask=fresh[None, :] & (k_dim[:, None] < K_DIM), other=0.0)
        v_at = v_pages + page * (PAGE_SIZE * V_DIM) + slot[:, None] * V_DIM + v_dim[None, :]
        v = tl.load(v_at, mask=fresh[:, None] & (v_dim[None, :] < V_DIM), other=0.0)
        s = _scores(q, k, scale, softcap, position, kv, length, WINDOW, SOFTCAP)
        new_top = tl.maximum(top, tl.max(s, 1))
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet: exp2(-inf - 0) is 0
        p = tl.exp2(s - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top

    let_next_start(PDL)
    entry = token * Q_HEADS + head
    mask = valid[:, None] & (v_dim[None, :] < V_DIM)
    if SPLITS > 1:
        part = entry * SPLITS
        tl.store(part_max + part + split, top, mask=valid)
        tl.store(part_sum + part + split, total, mask=valid)
        tl.store(parts + (part + split)[:, None] * V_DIM + v_dim[None, :], acc, mask=mask)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile * KV_HEADS + kv_head, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals + tile * KV_HEADS + kv_head, 0)
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)
        for other in tl.static_range(SPLITS):  # unrolled: all loads are in flight together
            their_top = tl.load(part_max + part + other, mask=valid, other=float("-inf"), cache_modifier=".cg")
            their_total = tl.load(part_sum + part + other, mask=valid, other=0.0, cache_modifier=".cg")
            at = parts + (part + other)[:, None] * V_DIM + v_dim[None, :]
            theirs = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
            new_top = tl.maximum(top, their_top)
            anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
            mine, yours = tl.exp2(top - anchor), tl.exp2(their_top - anchor)
            total = total * mine + their_total * yours
            acc = acc * mine[:, None] + theirs * yours[:, None]
            top = new_top
    if SINKS:
        sink = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
        anchor = tl.maximum(top, sink)
        total = total * tl.exp2(top - anchor) + tl.exp2(sink - anchor)
        acc = acc * tl.exp2(top - anchor)[:, None]
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + entry[:, None] * V_DIM + v_dim[None, :], acc.to(out.dtype.element_ty), mask=mask)


class _Launch(NamedTuple):
    block_m: int
    row_tiles: bool
    tiles: int
    splits: int
    warps: int
    stages: int


@cache
def _processors(device: torch.device) -> int:
    """Streaming multiprocessors; where there is no GPU (the interpreter), as many as make small cases split."""
    gpu = gpu_of(device)
    return 16 if gpu is None else torch.cuda.get_device_properties(gpu).multi_processor_count


def _plan(query: Tensor, k_pages: Tensor, v_pages: Tensor, rows: int, width: int, max_queries: int) -> _Launch:
    """Tile and split sizes, from shapes alone."""
    tokens, q_heads, _ = query.shape
    _, kv_heads, page_size, k_dim = k_pages.shape
    group = q_heads // kv_heads
    # What registers hold; exact fp32 products have no tensor cores and unroll into megabytes of code in larger tiles.
    largest = (128 if query.element_size() == 2 else 32) * 128 // max(128, triton.next_power_of_2(k_dim))
    wanted = min(triton.next_power_of_2(max(1, max_queries) * group), largest)
    block_m = max(16, wanted, triton.next_power_of_2(group))
    row_tiles = max_queries <= block_m // group
    tiles = rows if row_tiles else tokens // (block_m // group) + rows
    # Four times as many programs as processors: below that, latency and not bandwidth decides.
    spare = 4 * _processors(query.device) // max(1, tiles * kv_heads)
    # The last program reads all parts: more of them than pages in use would be read for nothing.
    splits = min(8 if width <= 64 else 16, 1 << max(0, spare.bit_length() - 1), triton.next_power_of_2(width))
    page_bytes = page_size * query.element_size()
    page_bytes *= triton.next_power_of_2(k_dim) + triton.next_power_of_2(v_pages.shape[3])
    stages = max(1, min(3, STAGE_BYTES // page_bytes))
    return _Launch(block_m, row_tiles, tiles, splits, 8 if block_m > 64 else 4, stages)


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
) -> Tensor:
    """See `specpipe_kernels.paged_attention`. Page sizes are powers of two, 16 or more."""
    tokens, q_heads, k_dim = query.shape
    _, kv_heads, page_size, v_dim = v_pages.shape
    rows, width = block_tables.shape
    assert k_pages.is_contiguous() and v_pages.is_contiguous() and k_pages.shape[1:] == (kv_heads, page_size, k_dim)
    assert block_tables.stride(1) == 1 and cu_queries.is_contiguous() and starts.is_contiguous()
    assert q_heads % kv_heads == 0 and page_size >= 16 and page_size & (page_size - 1) == 0
    out = query.new_empty(tokens, q_heads, v_dim)
    if tokens == 0:
        return out
    launch = _plan(query, k_pages, v_pages, rows, width, max_queries)
    parts, part_max, part_sum, arrivals = out, out, out, out
    if launch.splits > 1:
        parts = torch.empty(tokens, q_heads, launch.splits, v_dim, dtype=torch.float32, device=query.device)
        part_max = torch.empty(tokens, q_heads, launch.splits, dtype=torch.float32, device=query.device)
        part_sum = torch.empty_like(part_max)
        arrivals = arrival_counters(query.device)
    k_pad, v_pad = max(16, triton.next_power_of_2(k_dim)), max(16, triton.next_power_of_2(v_dim))
    logits = query if sinks is None else sinks
    log2e = math.log2(math.e)
    factors = (scale * log2e, 0.0) if softcap is None else (scale / softcap, softcap * log2e)
    _attention_kernel[(launch.tiles, kv_heads, launch.splits)](
        query, k_pages, v_pages, block_tables, cu_queries, starts, logits, out, parts, part_max, part_sum, arrivals,
        *factors, tokens, rows, width, launch.tiles, *query.stride(), block_tables.stride(0),
        Q_HEADS=q_heads, KV_HEADS=kv_heads, K_DIM=k_dim, V_DIM=v_dim, K_PAD=k_pad, V_PAD=v_pad, PAGE_SIZE=page_size,
        BLOCK_M=launch.block_m, WINDOW=window or 0, SOFTCAP=softcap is not None, SINKS=sinks is not None,
        ROW_TILES=launch.row_tiles, SPLITS=launch.splits, num_warps=launch.warps, num_stages=launch.stages,
        **launch_options(query),
    )  # fmt: skip
    return out
