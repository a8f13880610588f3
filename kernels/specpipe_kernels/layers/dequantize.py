"""Dense weights of quantised ones, for products of many rows by the vendor's library."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantized.int4_layout import INT4_BLOCK, INT4_SHORT_BLOCK, has_int4_tiles
from specpipe_kernels.reference.layers import dequantize as reference
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv
from specpipe_kernels.weights import QuantizedWeight

BLOCK_N = 32  # rows of a program, which takes a block of columns


@triton.jit
def _dequantize_int4_kernel(
    words, scale, zeros, out, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, STRIDE_N: tl.constexpr,
    STRIDE_G: tl.constexpr, BLOCK_N: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)  # the scratch memory may still be read
    let_next_start(PDL)
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    whole = tl.minimum(tl.program_id(1), K // 512)
    short = tl.program_id(1) - whole  # blocks of 128 behind the last of 512
    word, size = whole * 128 + short * 32, tl.where(tl.program_id(1) < K // 512, 128, 32)
    for span in tl.static_range(0, 128, SPAN):
        if span < size:
            bits = tl.load(words + n * (K // 4) + word + span + tl.arange(0, SPAN)[None, :], mask=n < N, other=0)
            for quarter in tl.static_range(4):
                column = word * 4 + quarter * size + span
                group = n * STRIDE_N + column // GROUP * STRIDE_G
                entry = ((bits >> 4 * quarter) & 15).to(tl.float32)
                if zeros is not None:
                    entry -= tl.load(zeros + group, mask=n < N, other=0).to(tl.float32)
                else:
                    entry -= 8.0
                value = entry * tl.load(scale + group, mask=n < N, other=0.0)
                at = out + n * K + column + tl.arange(0, SPAN)[None, :]
                tl.store(at, value.to(out.dtype.element_ty), mask=n < N)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Returns the weight [N, K] in dtype, with the reference's values."""
    n, k = weight.shape
    if not has_int4_tiles(weight):
        return reference.dequantize(weight, dtype)
    zeros, (stride_n, stride_g) = weight.zeros, weight.scale.stride()
    assert zeros is None or zeros.stride() == weight.scale.stride()
    out = torch.empty(n, k, dtype=dtype, device=weight.values.device)
    span = 128 if weight.block[1] % 128 == 0 and k % INT4_BLOCK == 0 else 32  # columns in one group and block
    blocks = k // INT4_BLOCK + k % INT4_BLOCK // INT4_SHORT_BLOCK
    _dequantize_int4_kernel[(cdiv(n, BLOCK_N), blocks)](
        weight.values.view(torch.int16), weight.scale, zeros, out, N=n, K=k, GROUP=weight.block[1], STRIDE_N=stride_n,
        STRIDE_G=stride_g, BLOCK_N=BLOCK_N, SPAN=span, **launch_options(out),
    )  # fmt: skip
    return out
