"""Rounding of rows of activations to 8 bits, one scale for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import Fp8Rows


@triton.jit
def store_fp8_row(value, factor, values, scale, row, lane, inside, K: tl.constexpr):
    """Stores value [BLOCK] fp32, 0 where not inside, as a row of values [M, K], and its scale times factor in [M]."""
    row_scale = fp8_scale(tl.max(tl.abs(value), 0))
    tl.store(values + row * K + lane, to_fp8(value, row_scale), mask=inside)
    tl.store(scale + row, row_scale * factor)


@triton.jit
def _quantize_rows_kernel(x, values, scale, stride_x, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    value = tl.load(x + row * stride_x + lane, mask=lane < K, other=0.0).to(tl.float32)
    store_fp8_row(value, 1.0, values, scale, row, lane, lane < K, K)


def empty_fp8_rows(rows: int, k: int, like: Tensor) -> Fp8Rows:
    """Returns rows [rows, k] with one scale each, not filled; device and 16-bit dtype are those of `like`."""
    values = torch.empty(rows, k, dtype=torch.float8_e4m3fn, device=like.device)
    return Fp8Rows(values, torch.empty(1, rows, dtype=torch.float32, device=like.device), k, like.dtype)


def row_warps(block: int) -> int:
    """Returns the number of warps of a program that holds a row of `block` entries."""
    return max(1, min(16, block // 1024))


def quantize_rows(x: Tensor) -> Fp8Rows:
    """Returns x [M, K] rounded to 8 bits."""
    rows, k = x.shape
    out = empty_fp8_rows(rows, k, x)
    if rows:
        block = power_of_2(k)
        _quantize_rows_kernel[(rows,)](
            x, out.values, out.scale, x.stride(0), K=k, BLOCK=block, num_warps=row_warps(block), **launch_options(x)
        )
    return out
