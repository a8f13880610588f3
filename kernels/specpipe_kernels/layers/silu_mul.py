"""SiLU(gate) * up of rows that hold gate and up one after the other."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < WIDTH
    wait_for_inputs(PDL)
    let_next_start(PDL)
    gate = tl.load(x + row * 2 * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * WIDTH + WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + lane, value.to(out.dtype.element_ty), mask=inside)


def silu_mul(x: Tensor) -> Tensor:
    """Returns SiLU(gate) * up [M, I] of contiguous x [M, 2 I] = gate, then up."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    if rows:
        _silu_mul_kernel[(rows, cdiv(width, BLOCK))](x, out, WIDTH=width, BLOCK=BLOCK, **launch_options(x))
    return out
