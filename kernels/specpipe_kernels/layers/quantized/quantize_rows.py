"""Rounding of rows of activations to 8 bits, one scale for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import MAX_FP8_ROWS, Fp8Rows

ROW_TILE = 128
"""Rows of a tile of the vendor's products: with others they take up to 1.6 times as long (H200, cuBLAS 13.0)."""


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
    """Returns rows [rows, k] with one scale each, not filled; device and 16-bit dtype are those of `like`.

    Memory is allocated for whole tiles of rows (`in_whole_tiles`).
    """
    padded = _padded(rows)
    values = torch.empty(padded, k, dtype=torch.float8_e4m3fn, device=like.device)
    scale = torch.empty(1, padded, dtype=torch.float32, device=like.device)
    return Fp8Rows(values[:rows], scale[:, :rows], k, like.dtype)


def in_whole_tiles(x: Fp8Rows) -> tuple[Tensor, Tensor]:
    """Returns values [P, K] and scales [P, 1] of rows from `empty_fp8_rows`: P >= M is a multiple of ROW_TILE.

    Rows behind the last one are undefined. Rows of another origin are returned as they are.
    """
    rows, k = x.values.shape
    padded = _padded(rows)
    memory = x.values.untyped_storage().nbytes(), x.scale.untyped_storage().nbytes() // 4 * k
    if min(memory) < padded * k or x.values.storage_offset() or x.scale.storage_offset():
        return x.values, x.scale.view(-1, 1)
    return x.values.as_strided((padded, k), (k, 1)), x.scale.as_strided((padded, 1), (1, 1))


def _padded(rows: int) -> int:
    return rows if rows <= MAX_FP8_ROWS else cdiv(rows, ROW_TILE) * ROW_TILE


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
