"""Writing keys and values into paged KV memory, in plain torch.

N tokens of all rows flattened, R rows, W blocks in a row's table, Hkv KV heads, D head size. Page 0 is the trash
page: what is written there is never read by a live row, so padding needs no branch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def write_index(block_tables: Tensor, cu_queries: Tensor, starts: Tensor, num_tokens: int, page_size: int) -> Tensor:
    """Where each token's key and value go: page * page_size + offset. Computed once per forward, for all layers.

    block_tables [R, W] int32, cu_queries [R+1] int32, starts [R] int64 (absolute position of a row's first token);
    returns [num_tokens] int64. Tokens of no row, at negative positions or beyond the table go to the trash page.
    """
    rows, width = block_tables.shape
    token = torch.arange(num_tokens, device=cu_queries.device, dtype=cu_queries.dtype)
    row = torch.searchsorted(cu_queries[1:], token, right=True)
    owned = row < rows
    row = row.clamp(max=rows - 1)
    position = starts[row] + (token - cu_queries[row])
    block = position.div(page_size, rounding_mode="floor")
    inside = owned & (position >= 0) & (block < width)
    page = block_tables[row, block.clamp(0, width - 1)].to(torch.int64)
    return torch.where(inside, page * page_size + position.remainder(page_size), token.to(torch.int64) % page_size)


def store_kv(key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor) -> None:
    """Scatter key and value [N, Hkv, D] (any strides) into k_pages and v_pages [pages, Hkv, page_size, D] in place.

    write_index [N] int64 holds page * page_size + offset. Equal indices may only point into the trash page.
    """
    page_size = k_pages.shape[2]
    page = write_index.div(page_size, rounding_mode="floor")
    offset = write_index.remainder(page_size)
    k_pages[page, :, offset] = key.to(k_pages.dtype)
    v_pages[page, :, offset] = value.to(v_pages.dtype)
