"""Gathers the state of a round's slots into batch rows, one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.types import OpenedRows, SlotTensors

TABLE_BLOCK = 256  # block-table columns copied at a time


@triton.jit(do_not_specialize=["k", "width", "stride_table"])
def _open_rows_kernel(state, slots, out, k, width, stride_table, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    tokens = tl.load(state.length + slot)
    fits = tl.minimum(tl.maximum(tl.load(state.limit + slot) - tokens - 1, 0), k)
    drafts = (tl.load(state.active + slot) != 0) & (tl.load(state.speculates + slot) != 0)
    max_drafts = tl.where(drafts, fits, 0).to(tl.int32)
    tl.store(out.lengths + row, tokens)
    tl.store(out.max_drafts + row, max_drafts)
    tl.store(out.max_model_drafts + row, tl.where(tl.load(state.draft_valid + slot) >= tokens - 2, max_drafts, 0))
    tl.store(out.temperature + row, tl.load(state.temperature + slot))
    tl.store(out.top_k + row, tl.load(state.top_k + slot))
    tl.store(out.top_p + row, tl.load(state.top_p + slot))
    tl.store(out.min_p + row, tl.load(state.min_p + slot))
    tl.store(out.seed + row, tl.load(state.seed + slot))
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        page = tl.load(state.block_table + slot * stride_table + column, mask=column < width, other=0)
        tl.store(out.block_tables + row.to(tl.int64) * width + column, page, mask=column < width)
    let_next_start(PDL)


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """See `specpipe_kernels.open_rows`."""
    count = slots.shape[0]

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=slots.device)

    out = OpenedRows(
        lengths=empty(count, dtype=torch.int64),
        max_drafts=empty(count, dtype=torch.int32),
        max_model_drafts=empty(count, dtype=torch.int32),
        block_tables=empty(count, width, dtype=torch.int32),
        temperature=empty(count, dtype=torch.float32),
        top_k=empty(count, dtype=torch.int32),
        top_p=empty(count, dtype=torch.float32),
        min_p=empty(count, dtype=torch.float32),
        seed=empty(count, dtype=torch.int64),
    )
    _open_rows_kernel[(count,)](
        state.with_bytes(), slots, out, k, width, state.block_table.stride(0),
        BLOCK=TABLE_BLOCK, num_warps=1, **launch_options(slots),
    )  # fmt: skip
    return out
