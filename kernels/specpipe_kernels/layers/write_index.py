"""Places of the keys and values of ragged rows in paged KV memory, computed in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.sizes import cdiv

BLOCK = 128


@triton.jit(do_not_specialize=["num_tokens", "rows", "width", "steps", "stride_table"])
def _write_index_kernel(
    tables, cu_queries, starts, out, num_tokens, rows, width, steps, stride_table,
    PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = token < num_tokens
    low = tl.zeros([BLOCK], tl.int32)
    high = low + rows
    for _ in range(steps):  # bisection for the first row that ends beyond the token
        middle = (low + high) // 2
        open_ = low < high
        end = tl.load(cu_queries + 1 + middle, mask=open_, other=0)
        low = tl.where(open_ & (end <= token), middle + 1, low)
        high = tl.where(open_ & (end > token), middle, high)
    owned = exists & (low < rows)
    start = tl.load(starts + low, mask=owned, other=-1)
    position = start + (token - tl.load(cu_queries + low, mask=owned, other=0))
    block = position // PAGE_SIZE
    inside = owned & (position >= 0) & (block < width)
    page = tl.load(tables + low.to(tl.int64) * stride_table + block, mask=inside, other=0).to(tl.int64)
    index = tl.where(inside, page * PAGE_SIZE + position % PAGE_SIZE, token % PAGE_SIZE)
    tl.store(out + token, index, mask=exists)


def write_index(block_tables: Tensor, cu_queries: Tensor, starts: Tensor, num_tokens: int, page_size: int) -> Tensor:
    """See `specpipe_kernels.write_index`."""
    rows, width = block_tables.shape
    assert block_tables.stride(1) == 1 and cu_queries.is_contiguous() and starts.is_contiguous()
    out = torch.empty(num_tokens, dtype=torch.int64, device=block_tables.device)
    grid = (cdiv(num_tokens, BLOCK),)
    _write_index_kernel[grid](
        block_tables, cu_queries, starts, out, num_tokens, rows, width, rows.bit_length(), block_tables.stride(0),
        PAGE_SIZE=page_size, BLOCK=BLOCK,
    )  # fmt: skip
    return out
