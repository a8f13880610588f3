"""Attention of groups of rows to the pages that their block tables share, each page gathered once a group. CPU only.

R tiles of T tokens, each of one row; Hq query heads, Hkv KV heads, D head size, W blocks in a row's table; E = Hq /
Hkv * T entries per KV head. The numbers of groups, members and pages are read from the tensors: on another device that
would be a synchronisation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.attention_tiles import Tiles, attention_mask, dequantized
from specpipe_kernels.reference.layers.softmax_parts import SoftmaxPart, attend_part
from specpipe_kernels.types import KVScales, PrefixArgs


class OwnKeys(NamedTuple):
    """The keys of each row behind those that its group shares."""

    tables: Tensor
    """[R, pages] int32."""
    lengths: Tensor
    """[R] number of keys."""
    positions: Tensor
    """[R, T] position of each token among them; negative for a token that attends to none."""


def groups_of_tiles(prefix: PrefixArgs, tiles: Tiles) -> PrefixArgs:
    """Returns groups of rows as groups of their tiles; a tile without tokens is in none."""
    if tiles.row.shape[0] == prefix.prefix_pages.shape[0]:
        return prefix  # a tile is a row
    sizes = prefix.cu_members.diff()
    group = torch.full_like(prefix.prefix_pages, -1)
    group[prefix.members[: sizes.sum()]] = torch.arange(sizes.shape[0]).repeat_interleave(sizes)
    group = torch.where(tiles.position[:, 0] >= 0, group[tiles.row], -1)
    members = group.argsort(stable=True)[(group < 0).sum() :]
    ends = group[members].bincount(minlength=sizes.shape[0]).cumsum(0)
    return PrefixArgs(prefix.prefix_pages[tiles.row], members, torch.cat([ends.new_zeros(1), ends]))


def own_keys(prefix: PrefixArgs, tables: Tensor, lengths: Tensor, positions: Tensor, page_size: int) -> OwnKeys:
    """Removes shared pages from block tables [R, W], lengths [R] and positions [R, T]."""
    capacity = tables.shape[1] * page_size  # drafts beyond a row's table attend to what it has
    shared = prefix.prefix_pages * page_size
    own = lengths.clamp(max=capacity) - shared
    width = max(1, -(-max(own.tolist()) // page_size))
    columns = prefix.prefix_pages[:, None] + torch.arange(width)
    tables = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
    return OwnKeys(tables, own, positions.clamp(max=capacity - 1) - shared[:, None])


def attend_groups(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    prefix: PrefixArgs,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    scales: KVScales,
) -> SoftmaxPart:
    """Attends q [R, Hkv, E, D] to the shared pages of each row's group; rows in no group have an `lse` of -inf.

    block_tables [R, W]; positions [R, T].
    """
    rows, kv_heads, entries, _ = q.shape
    result = None
    heads = torch.arange(kv_heads)[:, None]
    members, counts = prefix.members.tolist(), prefix.prefix_pages.tolist()
    for begin, end in pairwise(prefix.cu_members.tolist()):
        if begin == end:
            continue
        group, first = prefix.members[begin:end], members[begin]
        lines = (block_tables[first, : counts[first]].to(torch.int64) * kv_heads + heads).flatten()
        k, v = (
            dequantized(_gather_lines(pages, lines, kv_heads), scale, q.dtype)
            for pages, scale in zip((k_pages, v_pages), scales, strict=True)
        )
        mask = None
        if window is not None:
            mask = attention_mask(torch.arange(k.shape[2]), positions[group], window, q)
            mask = mask.expand(-1, -1, entries // positions.shape[1], -1, -1).reshape(1, 1, -1, k.shape[2])
        complete = members[begin:end] == list(range(rows))  # often; then nothing is picked and scattered
        queries = (q if complete else q[group]).transpose(0, 1).flatten(1, 2)[None]
        part = attend_part(queries, k, v, mask, scale=scale, softcap=softcap)
        part = SoftmaxPart(*(x[0].unflatten(1, (end - begin, entries)).transpose(0, 1) for x in part))
        if complete:
            return part
        result = result or _no_keys(q, v_pages.shape[3])
        for all_rows, of_group in zip(result, part, strict=True):
            all_rows[group] = of_group
    return result or _no_keys(q, v_pages.shape[3])


def _no_keys(q: Tensor, value_dim: int) -> SoftmaxPart:
    """Returns the attention of q [R, Hkv, E, D] to no key."""
    return SoftmaxPart(q.new_full(q.shape[:3], float("-inf")), q.new_zeros(*q.shape[:3], value_dim))


def _gather_lines(pages: Tensor, lines: Tensor, kv_heads: int) -> Tensor:
    """Returns keys or values [1, Hkv, tokens, D] of lines [Hkv * pages], page * Hkv + head, head by head."""
    found = pages.view(-1, pages.shape[2] * pages.shape[3]).index_select(0, lines)
    return found.view(1, kv_heads, -1, pages.shape[3])
