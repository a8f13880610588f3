"""Attention over paged KV memory for ragged rows, in plain torch, without host synchronisation except on a CPU.

N query tokens of all rows flattened, R rows, Hq query heads, Hkv KV heads, D head size, W blocks in a row's table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.reference.layers.attention_tiles import (
    attention_mask,
    dequantized,
    gather_pages,
    make_tiles,
    pack,
    unpack,
)
from specpipe_kernels.reference.layers.prefix_groups import attend_groups, groups_of_tiles, own_keys
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.reference.layers.softmax_parts import SoftmaxPart, attend_part, finish_softmax, merge_parts
from specpipe_kernels.types import UNSCALED, KVScales, PrefixArgs
from specpipe_kernels.weights import Fp8Rows

# Elements that a group of tiles gathers at most: 2 MB in fp32 stay in cache, 8 MB took 1.4 times as long.
GROUP_ELEMENTS = 1 << 19
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # the integer type as wide as a float


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
) -> Tensor | Fp8Rows:
    """See `specpipe_kernels.paged_attention`. Shared pages are read once a group on a CPU, elsewhere once a row."""
    kv_heads, page_size = k_pages.shape[1:3]
    tiles = make_tiles(cu_queries, starts, query.shape[0], max_queries)
    tables, positions = block_tables[tiles.row], tiles.position
    length = starts[tiles.row] + (cu_queries[tiles.row + 1] - cu_queries[tiles.row])
    q = pack(query, tiles, kv_heads).to(torch.promote_types(query.dtype, torch.float32))
    shared = None
    if prefix is not None and query.device.type == "cpu":
        prefix = groups_of_tiles(prefix, tiles)
        shared = attend_groups(
            q, k_pages, v_pages, tables, positions, prefix, scale=scale, window=window, softcap=softcap, scales=scales
        )
        tables, length, positions = own_keys(prefix, tables, length, positions, page_size)
    blocks = tables.to(torch.int64)[:, None] * kv_heads + torch.arange(kv_heads, device=query.device)[:, None]
    out = q.new_empty(*q.shape[:-1], v_pages.shape[3])
    widths = _pages_read(positions, tables.shape[1], page_size)
    for part in _slices(widths, page_size * (q.shape[2] + kv_heads * (k_pages.shape[3] + v_pages.shape[3]))):
        width = max(widths[part])
        kv = torch.arange(width * page_size, device=query.device)
        bits = (kv < length[part, None]).to(_BITS[k_pages.element_size()]).neg()
        k, v = (
            dequantized(gather_pages(pages, blocks[part, :, :width], bits), scale, q.dtype)
            for pages, scale in zip((k_pages, v_pages), scales, strict=True)
        )
        mask = attention_mask(kv, positions[part], window, q)
        mask = mask.expand(-1, -1, q.shape[2] // positions.shape[1], -1, -1).reshape(k.shape[0], 1, q.shape[2], -1)
        if softcap is None and sinks is None and shared is None:
            out[part] = functional.scaled_dot_product_attention(q[part], k, v, attn_mask=mask, scale=scale)
        else:
            sums = attend_part(q[part], k, v, mask, scale=scale, softcap=softcap)
            if shared is not None:
                sums = merge_parts(sums, SoftmaxPart(*(x[part] for x in shared)))
            out[part] = finish_softmax(sums, sinks)
    result = unpack(out, tiles, query)
    return quantize_rows(result.flatten(1), result.shape[2]) if fp8 else result


def _pages_read(positions: Tensor, pages: int, page_size: int) -> list[int]:
    """Returns the leading pages of its table that each tile reads, at least one; all of them where they are not on a
    CPU. positions [tiles, T]; pages: width of a table."""
    if positions.device.type != "cpu":
        return [pages] * positions.shape[0]
    return (positions.amax(1) // page_size + 1).clamp_(1, pages).tolist()


def _slices(widths: Sequence[int], page_elements: int) -> Iterator[slice]:
    """Yields consecutive tiles that gather about GROUP_ELEMENTS together, or one tile.

    widths: pages of each tile; all tiles of a slice gather as many as its widest. page_elements: elements of a page.
    """
    begin = widest = 0
    for i, width in enumerate(widths):
        if i > begin and max(widest, width) * (i + 1 - begin) * page_elements > GROUP_ELEMENTS:
            yield slice(begin, i)
            begin, widest = i, 0
        widest = max(widest, width)
    if widths:
        yield slice(begin, len(widths))
