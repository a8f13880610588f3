"""Rows whose columns lie in the order in which products of many rows convert 4-bit weights."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv

BLOCK_M = 4


@triton.jit(do_not_specialize=["rows"])
def _order_columns_kernel(x, out, rows, stride_x, K: tl.constexpr, BLOCK_M: tl.constexpr, PDL: tl.constexpr):
    wait_for_inputs(PDL)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, 512)
    first = tl.program_id(1) * 512
    column = tl.where(first + 512 <= K, lane % 128 // 32 * 128 + lane // 128 * 32 + lane % 32, lane)
    column = tl.max_contiguous(tl.multiple_of(first + column, 8), 8)
    mask = (m < rows)[:, None] & (first + lane < K)[None, :]
    values = tl.load(x + m[:, None].to(tl.int64) * stride_x + column[None, :], mask=mask, other=0.0)
    let_next_start(PDL)
    tl.store(out + m[:, None].to(tl.int64) * K + (first + lane)[None, :], values, mask=mask)


def order_columns(x: Tensor) -> Tensor:
    """Returns x [M, K] with the columns of each whole block of 512 in the order of the weight's words (`int4_layout`).

    128 columns belong to 32 adjacent words: the 32 of the words' first quarter, those of the second, and so on. Short
    blocks lie so already.
    """
    rows, k = x.shape
    out = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    _order_columns_kernel[(cdiv(rows, BLOCK_M), cdiv(k, 512))](
        x, out, rows, x.stride(0), K=k, BLOCK_M=BLOCK_M, num_warps=4, **launch_options(x)
    )
    return out
