"""Attention of groups of rows to the pages that their block tables share, each page gathered once a group. CPU only.

R rows, one tile of T tokens each; Hq query heads, Hkv KV heads, D head size, W blocks in a row's table; E = Hq / Hkv *
T entries per KV head. The numbers of groups, members and pages are read from the tensors: on another device that would
be a synchronisation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.attention_tiles import attention_mask
from specpipe_kernels.reference.layers.softmax_parts import SoftmaxPart, attend_part
from specpipe_kernels.types import PrefixArgs


class OwnKeys(NamedTuple):
    """The keys of each row behind those that its group shares."""

    tables: Tensor
    """[R, pages] int32."""
    lengths: Tensor
    """[R] number of keys."""
    positions: Tensor
    """[R, T] position of each token among them; negative for a token that attends to none."""


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
) -> SoftmaxPart:
    """Attends q [R, Hkv, E, D] to the shared pages of each row's group; rows in no group have a `top` of -inf.

    block_tables [R, W]; positions [R, T].
    """
    rows, kv_heads, entries, _ = q.shape
    result = SoftmaxPart(
        q.new_full((rows, kv_heads, entries), float("-inf")),
        q.new_zeros(rows, kv_heads, entries),
        q.new_zeros(rows, kv_heads, entries, v_pages.shape[3]),
    )
    members, counts = prefix.members.tolist(), prefix.prefix_pages.tolist()
    for begin, end in pairwise(prefix.cu_members.tolist()):
        if begin == end:
            continue
        group, first = prefix.members[begin:end], members[begin]
        pages = block_tables[first, : counts[first]]
        k, v = (x.index_select(0, pages).transpose(0, 1).flatten(1, 2).to(q.dtype) for x in (k_pages, v_pages))
        mask = None
        if window is not None:
            mask = attention_mask(torch.arange(k.shape[1]), positions[group], window, q)
            mask = mask.expand(-1, -1, entries // positions.shape[1], -1, -1).reshape(1, -1, k.shape[1])
        queries = q[group].transpose(0, 1).flatten(1, 2)
        part = attend_part(queries, k, v, mask, scale=scale, softcap=softcap)
        for all_rows, of_group in zip(result, part, strict=True):
            all_rows[group] = of_group.unflatten(1, (end - begin, entries)).transpose(0, 1)
    return result
