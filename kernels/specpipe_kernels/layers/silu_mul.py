"""SiLU(gate) * up of rows that hold gate and up one after the other, in 16 or 8 bits."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantized.quantize_rows import empty_fp8_rows, row_warps, store_fp8_row
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Fp8Rows

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(x, out, out_scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < WIDTH
    wait_for_inputs(PDL)
    let_next_start(PDL)
    gate = tl.load(x + row * 2 * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * WIDTH + WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    if out_scale is not None:
        store_fp8_row(value, 1.0, out, out_scale, row, lane, inside, WIDTH)
    else:
        tl.store(out + row * WIDTH + lane, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(x: Tensor, *, fp8: bool = False) -> Tensor | Fp8Rows:
    """Returns SiLU(gate) * up [M, I] of contiguous x [M, 2 I] = gate, then up; fp8: in 8 bits, one scale a row."""
    rows, width = x.shape[0], x.shape[1] // 2
    # A program needs a whole row for its scale.
    block, warps = (power_of_2(width), row_warps(power_of_2(width))) if fp8 else (BLOCK, 4)
    eight = empty_fp8_rows(rows, width, x) if fp8 else None
    out = x.new_empty(rows, width) if eight is None else eight.values
    if rows:
        _silu_mul_kernel[(rows, cdiv(width, block))](
            x, out, None if eight is None else eight.scale, WIDTH=width, BLOCK=block, num_warps=warps,
            **launch_options(x),
        )  # fmt: skip
    return out if eight is None else eight
