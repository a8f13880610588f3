"""Sums the results of each token's experts."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv

_BLOCK = 1024


@triton.jit
def _combine_pairs_kernel(parts, out, H: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < H
    wait_for_inputs(PDL)
    let_next_start(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TOP_K):
        total += tl.load(parts + (token * TOP_K + i) * H + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * H + lane, total.to(out.dtype.element_ty), mask=inside)


def combine_pairs(parts: Tensor, top_k: int) -> Tensor:
    """Returns the sums [M, H] over the experts of each token. parts: [M * top_k, H], contiguous; sums in fp32."""
    tokens, hidden = parts.shape[0] // top_k, parts.shape[1]
    out = parts.new_empty(tokens, hidden)
    _combine_pairs_kernel[(tokens, cdiv(hidden, _BLOCK))](
        parts, out, H=hidden, TOP_K=top_k, BLOCK=_BLOCK, num_warps=4, **launch_options(parts)
    )
    return out
