"""Lays out the tokens and positions of a forward pass, one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import ForwardTokens, SlotTensors


@triton.jit(
    do_not_specialize=["shift", "width", "last", "num_drafts", "stride_draft", "stride_tokens"],
    do_not_specialize_on_alignment=["drafts"],  # a column of the draft tokens so far
)
def _feed_rows_kernel(
    tokens, slots, lengths, drafts, out_tokens, out_positions, out_starts, out_next,
    shift, width, last, num_drafts, stride_draft, stride_tokens, T_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    length = tl.load(lengths + row)
    start = length + shift
    column = tl.arange(0, T_PAD)
    position = start + column
    in_width = column < width
    committed = tl.maximum(tl.minimum(position, length - 1), 0)
    token = tl.load(tokens + slot * stride_tokens + committed, mask=in_width, other=0)
    if drafts is not None:
        at = tl.maximum(tl.minimum(position - length, num_drafts - 1), 0)
        draft = tl.load(drafts + row * stride_draft + at, mask=in_width & (position >= length), other=-1)
        token = tl.where(draft >= 0, draft, token)
    tl.store(out_tokens + row * width + column, token, mask=in_width)
    tl.store(out_positions + row * width + column, tl.minimum(tl.maximum(position, 0), last), mask=in_width)
    tl.store(out_starts + row, start)
    tl.store(out_next + row, start + width)
    let_next_start(PDL)


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> ForwardTokens:
    """See `specpipe_kernels.feed_rows`."""
    count = slots.shape[0]
    sizes = (count * width, count * width, count, count)
    out = ForwardTokens(*(torch.empty(n, dtype=torch.int64, device=slots.device) for n in sizes))
    _feed_rows_kernel[(count,)](
        state.tokens, slots, lengths, drafts, *out, shift, width, last,
        0 if drafts is None else drafts.shape[1], 0 if drafts is None else drafts.stride(0), state.tokens.stride(0),
        T_PAD=power_of_2(width), num_warps=1, **launch_options(slots),
    )  # fmt: skip
    return out
