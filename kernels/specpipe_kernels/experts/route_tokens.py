"""Chooses the experts of each token from the router's logits, and completes the norm of its input.

One program per token. An expert's place among the chosen is the number of logits before its own, counted for all
experts at once: choosing one after the other takes as many steps as there are choices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.quantized.quantize_rows import empty_fp8_rows, quantize_rows, store_fp8_row
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.weights import Fp8Rows, Normed, Routing

_CHUNK = 16  # logits that are compared with all of a token at a time


@triton.jit
def _load_logits(row, expert, E: tl.constexpr):
    """Returns a token's logits of these experts in fp32: the lowest number for NaN, -inf beyond E."""
    logit = tl.load(row + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    return tl.where(logit == logit, logit, -3.0e38)


@triton.jit(do_not_specialize=["rows"])
def _route_tokens_kernel(
    logits, x, squares, ids, weights, x_out, x_scale, rows, stride, stride_x, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, CHUNK: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E_PAD)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    if squares is not None:
        part = tl.arange(0, PARTS_PAD)
        sums = tl.load(squares + part * rows + token, mask=part < PARTS, other=0.0)
        lane = tl.arange(0, BLOCK)
        values = tl.load(x + token * stride_x + lane, mask=lane < H, other=0.0).to(tl.float32)
        values *= tl.rsqrt(tl.sum(sums, 0) / H + eps)
        if x_scale is not None:
            rounded = values.to(x.dtype.element_ty).to(tl.float32)  # as rows whose norm was complete
            store_fp8_row(rounded, 1.0, x_out, x_scale, token, lane, lane < H, H)
        else:
            tl.store(x_out + token * H + lane, values.to(x_out.dtype.element_ty), mask=lane < H)
    row = logits + token * stride
    logit = _load_logits(row, expert, E)
    larger = tl.zeros([E_PAD, CHUNK], tl.int32)  # or as large with a lower number
    for begin in range(0, E_PAD, CHUNK):
        other = begin + tl.arange(0, CHUNK)
        other_logit = _load_logits(row, other, E)[None, :]
        ties = (other_logit == logit[:, None]) & (other[None, :] < expert[:, None])
        larger += ((other_logit > logit[:, None]) | ties).to(tl.int32)
    rank = tl.sum(larger, 1)
    chosen = (rank < TOP_K) & (expert < E)
    weight = tl.exp(logit - tl.max(logit, 0))
    weight /= tl.sum(tl.where(chosen, weight, 0.0) if NORMALIZE else weight, 0)
    at = token * TOP_K + rank
    tl.store(ids + at, expert, mask=chosen)
    tl.store(weights + at, weight, mask=chosen)


def route_tokens(logits: Tensor, x: Normed, top_k: int, *, normalize: bool, fp8: bool = False) -> Routing:
    """See `specpipe_kernels.route_tokens`."""
    (tokens, experts), hidden = logits.shape, x.values.shape[1]
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    normed: Tensor | Fp8Rows = x.values
    if x.squares is not None:
        normed = empty_fp8_rows(tokens, hidden, x.values) if fp8 else torch.empty_like(x.values)
    elif fp8:
        normed = quantize_rows(x.values)
    out, scale = (normed.values, normed.scale) if isinstance(normed, Fp8Rows) else (normed, None)
    parts = 0 if x.squares is None else x.squares.shape[0]
    assert logits.stride(1) == 1 and top_k <= experts
    if tokens:
        _route_tokens_kernel[(tokens,)](
            logits, x.values, x.squares, ids, weights, out, scale, tokens, logits.stride(0), x.values.stride(0), x.eps,
            E=experts, E_PAD=power_of_2(experts), CHUNK=min(_CHUNK, power_of_2(experts)), TOP_K=top_k,
            NORMALIZE=normalize, H=hidden, BLOCK=power_of_2(hidden), PARTS=parts,
            PARTS_PAD=power_of_2(max(1, parts)), num_warps=8, **launch_options(logits),
        )  # fmt: skip
    return Routing(ids, weights, normed)
