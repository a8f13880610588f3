"""Places of the keys and values of ragged rows in paged KV memory, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def write_index(block_tables: Tensor, cu_queries: Tensor, starts: Tensor, num_tokens: int, page_size: int) -> Tensor:
    """See `specpipe_kernels.write_index`."""
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
