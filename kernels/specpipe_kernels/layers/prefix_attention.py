"""Attention of groups of rows to the pages that their block tables share, each page read once a tile of queries.

Queries against pages that are read once for all rows of a group, own pages row by row, and both merged by their
log-sum-exps: Juravsky et al., "Hydragen" (arXiv 2402.05099); cascade inference in FlashInfer. This kernel computes the
first part; `paged_attention` attends to own pages and merges.

A tile is BLOCK_M entries of one group and one KV head; an entry is a query token of a member and one of the G query
heads that share the KV head. The groups are known to the device alone. So the grid is as large as the GPU, and every
program computes the same plan from all groups: how many pages a program processes at a time (`chunk`), so that all have
about equally many, and thereby the tiles and splits of each group. Each program takes every num_programs-th of them.
Splits store parts of the online softmax, which `paged_attention` merges: none waits for another.
"""

from __future__ import annotations

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
    multiply_keys,
    prepare_queries,
    scale_logits,
    zero_sums,
)
from specpipe_kernels.layers.layer_args import AttentionSizes, LogitArgs, PageArgs, PrefixParts, QueryArgs
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.types import PrefixArgs

MAX_SPLITS = 16
"""Parts of a tile, at most."""
WIDE_ENTRIES = 2048
"""Queries times query heads per KV head from which tiles of 128 entries are faster than those of 64 (110 against 135 us
for 4 tokens of 256 rows, on an H200)."""


@triton.jit
def _at(values, here):
    """Returns the entry of values [groups] where `here` is true."""
    return tl.sum(tl.where(here, values, 0))


@triton.jit(
    do_not_specialize=["groups", "row_tokens", "num_tokens", "width", "stride_table", "max_splits", "min_pages"]
)
def _prefix_attention_kernel(
    pages, prefix, parts, logits, queries, groups, row_tokens, num_tokens, width, stride_table,
    max_splits, min_pages,
    SIZES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    GROUPS_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    KV_HEADS: tl.constexpr = SIZES.kv_heads
    G: tl.constexpr = SIZES.q_heads // KV_HEADS
    V_PAD: tl.constexpr = SIZES.v_pad
    BLOCKS: tl.constexpr = SIZES.page_size // BLOCK_N
    # The host wrote the groups before the round: they are read while the previous kernel runs.
    g = tl.arange(0, GROUPS_PAD)
    first = tl.load(prefix.cu_members + g, mask=g < groups, other=0).to(tl.int32)
    end = tl.load(prefix.cu_members + g + 1, mask=g < groups, other=0).to(tl.int32)
    leader = tl.load(prefix.members + first, mask=end > first, other=0).to(tl.int32)
    shared = tl.load(prefix.prefix_pages + leader, mask=end > first, other=0).to(tl.int32)
    entries = (end - first) * row_tokens * G
    tiles = tl.cdiv(entries, BLOCK_M)
    chunk = tl.cdiv(tl.sum(tiles * shared) * KV_HEADS, tl.num_programs(0))
    chunk = tl.maximum(tl.maximum(chunk, tl.cdiv(tl.max(shared, 0), max_splits)), min_pages)
    items = tiles * tl.cdiv(shared, chunk)
    item_ends = tl.cumsum(items, 0)
    wait_for_inputs(PDL)
    let_next_start(PDL)  # every program has a processor: the next kernel takes what they leave
    if tl.program_id(0) == 0:
        tl.store(parts.chunk, chunk)

    m = tl.arange(0, BLOCK_M)
    v_dim = tl.arange(0, V_PAD)
    for item in range(tl.program_id(0), tl.sum(items) * KV_HEADS, tl.num_programs(0)):
        kv_head = item % KV_HEADS
        before = item_ends <= item // KV_HEADS
        here = g == tl.sum(before.to(tl.int32))
        index = item // KV_HEADS - tl.sum(tl.where(before, items, 0))
        group_pages = _at(shared, here)
        splits = tl.cdiv(group_pages, chunk)
        split = index % splits
        entry = index // splits * BLOCK_M + m
        valid = entry < _at(entries, here)
        member = tl.load(prefix.members + _at(first, here) + entry // (row_tokens * G), mask=valid, other=0)
        column = entry // G % row_tokens
        token = member * row_tokens + column
        head = kv_head * G + entry % G
        position = tl.load(queries.starts + member, mask=valid, other=-1).to(tl.int32) + column
        ready = valid & (position >= 0)
        q = load_queries(queries, token, head, ready, SIZES)
        q, q_odd, factor = prepare_queries(q, pages, logits, kv_head, SIZES)

        split_blocks = tl.cdiv(group_pages, splits) * BLOCKS  # equal splits, none with a few pages left over
        begin = split * split_blocks
        stop = tl.minimum(begin + split_blocks, group_pages * BLOCKS)
        if WINDOW > 0:
            earliest = tl.min(tl.where(ready, position, 2147483647), 0)
            begin = tl.maximum(begin, tl.maximum(earliest - WINDOW + 1, 0) // BLOCK_N)
        table = pages.tables + _at(leader, here).to(tl.int64) * stride_table
        line = load_page(table, begin, width, SIZES, BLOCK_N) * KV_HEADS + kv_head
        next_page = load_page(table, begin + 1, width, SIZES, BLOCK_N)
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc, acc_odd = zero_sums(pages, SIZES, BLOCK_M)
        for block in range(begin, stop):
            kv, k, v = load_block(pages, line, block, stop * BLOCK_N, SIZES, BLOCK_N)
            line = next_page * KV_HEADS + kv_head
            next_page = load_page(table, block + 2, width, SIZES, BLOCK_N)
            s = scale_logits(multiply_keys(q, q_odd, k), factor, logits, SOFTCAP)
            if WINDOW > 0:
                s = tl.where(kv[None, :] > position[:, None] - WINDOW, s, float("-inf"))
            top, total, acc, acc_odd = add_block(s, v, top, total, acc, acc_odd, q.dtype, False)
        acc = join_sums(acc, acc_odd, SIZES)

        at = (split * num_tokens + token) * SIZES.q_heads + head
        tl.store(parts.top + at, tl.where(ready, top, float("-inf")), mask=valid)
        tl.store(parts.total + at, tl.where(ready, total, 0.0), mask=valid)
        acc = tl.where(ready[:, None], acc, 0.0)
        acc_at = parts.acc + at[:, None] * SIZES.v_dim + v_dim[None, :]
        tl.store(acc_at, acc, mask=valid[:, None] & (v_dim[None, :] < SIZES.v_dim))


class PrefixTiling(NamedTuple):
    """Tile sizes of attention to shared pages; chosen from shapes alone, measured on an H200 (docs/notebook.md)."""

    block_m: int
    """Entries of a tile: query tokens times query heads per KV head."""
    block_n: int
    """Keys per iteration: a page or a part of one."""
    splits: int
    """Programs that share the pages of a tile, at most."""
    min_pages: int
    """Pages that a split has, at least: each part is merged."""
    programs: int
    """Programs of the grid."""
    warps: int
    stages: int


def _processors(device: torch.device) -> int:
    """Returns the number of multiprocessors; without a GPU (the interpreter) 4, so that programs take several tiles."""
    return 4 if gpu_of(device) is None else processors(device)


def prefix_tiling(query: Tensor, k_pages: Tensor, v_pages: Tensor) -> PrefixTiling:
    """Returns the tile sizes for queries [N, Hq, D] of all rows, as if these were one group."""
    tokens, q_heads, _ = query.shape
    _, kv_heads, page_size, k_dim = k_pages.shape
    itemsize, head_bytes = query.element_size(), power_of_2(k_dim) + power_of_2(v_pages.shape[3])
    # Limited by registers; exact fp32 products have no tensor cores and unroll into megabytes of code in larger tiles.
    entries = tokens * (q_heads // kv_heads)
    widest = 128 if entries >= WIDE_ENTRIES else 64
    max_block_m = (widest if itemsize == 2 else 32) * 128 // max(128, power_of_2(k_dim))
    block_m = max(16, min(power_of_2(entries), max_block_m))
    stages = max(1, min(3, STAGE_BYTES // (page_size * itemsize * head_bytes)))
    available = _processors(query.device)
    splits = max(1, min(MAX_SPLITS, 2 * available // (cdiv(entries, block_m) * kv_heads)))
    return PrefixTiling(block_m, page_size, splits, 2, available, 8 if block_m > 64 else 4, stages)


def attend_prefixes(
    queries: QueryArgs,
    pages: PageArgs,
    prefix: PrefixArgs,
    logits: LogitArgs,
    sizes: AttentionSizes,
    *,
    window: int,
    softcap: bool,
) -> PrefixParts:
    """Attends the queries of rows in groups to the pages that each group shares. Every row has as many tokens.

    window: 0 without one; softcap: True with one.
    """
    query, (rows, width) = queries.query, pages.tables.shape
    tokens, groups = query.shape[0], prefix.cu_members.shape[0] - 1
    assert tokens % rows == 0 and all(x.is_contiguous() for x in prefix)
    tiles = prefix_tiling(query, pages.k_pages, pages.v_pages)
    shape = (tiles.splits, tokens, sizes.q_heads)
    acc = query.new_empty(*shape, sizes.v_dim, dtype=torch.float32)
    top, total = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    chunk = query.new_empty(1, dtype=torch.int32)
    parts = PrefixParts(prefix.prefix_pages, chunk, acc, top, total)
    _prefix_attention_kernel[(tiles.programs,)](
        pages, prefix, parts, logits, queries, groups, tokens // rows, tokens, width, pages.tables.stride(0),
        tiles.splits, tiles.min_pages,
        SIZES=sizes, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, WINDOW=window, SOFTCAP=softcap,
        GROUPS_PAD=power_of_2(max(1, groups)),
        num_warps=tiles.warps, num_stages=tiles.stages, **launch_options(query),
    )  # fmt: skip
    return parts
