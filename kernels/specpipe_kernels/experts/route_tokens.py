"""Chooses the experts of each token from the router's logits, and completes the norm of its input.

One program per token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.weights import Normed, Routing


@triton.jit(do_not_specialize=["rows"])
def _route_tokens_kernel(
    logits, x, squares, ids, weights, x_out, rows, stride, stride_x, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, TOP_K: tl.constexpr, K_PAD: tl.constexpr, NORMALIZE: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E_PAD)
    choice = tl.arange(0, K_PAD)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    if squares is not None:
        part = tl.arange(0, PARTS_PAD)
        sums = tl.load(squares + part * rows + token, mask=part < PARTS, other=0.0)
        lane = tl.arange(0, BLOCK)
        row = tl.load(x + token * stride_x + lane, mask=lane < H, other=0.0).to(tl.float32)
        row *= tl.rsqrt(tl.sum(sums, 0) / H + eps)
        tl.store(x_out + token * H + lane, row.to(x_out.dtype.element_ty), mask=lane < H)
    left = tl.load(logits + token * stride + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    top = tl.max(left, 0)
    total = tl.sum(tl.exp(left - top), 0)
    chosen = tl.zeros([K_PAD], tl.int32)
    chosen_logit = tl.full([K_PAD], float("-inf"), tl.float32)
    for i in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        best_id = tl.min(tl.where((left == best) & (expert < E), expert, E_PAD), 0)
        best_id = tl.minimum(best_id, E - 1)  # NaN logits equal nothing
        chosen = tl.where(choice == i, best_id, chosen)
        chosen_logit = tl.where(choice == i, best, chosen_logit)
        left = tl.where(expert == best_id, float("-inf"), left)
    weight = tl.where(choice < TOP_K, tl.exp(chosen_logit - top), 0.0)
    weight /= tl.sum(weight, 0) if NORMALIZE else total
    at = token * TOP_K + choice
    tl.store(ids + at, chosen, mask=choice < TOP_K)
    tl.store(weights + at, weight, mask=choice < TOP_K)


def route_tokens(logits: Tensor, x: Normed, top_k: int, *, normalize: bool) -> Routing:
    """See `specpipe_kernels.route_tokens`."""
    (tokens, experts), hidden = logits.shape, x.values.shape[1]
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    normed = x.values if x.squares is None else torch.empty_like(x.values)
    parts = 0 if x.squares is None else x.squares.shape[0]
    assert logits.stride(1) == 1 and top_k <= experts
    if tokens:
        _route_tokens_kernel[(tokens,)](
            logits, x.values, x.squares, ids, weights, normed, tokens, logits.stride(0), x.values.stride(0), x.eps,
            E=experts, E_PAD=power_of_2(experts), TOP_K=top_k, K_PAD=power_of_2(top_k), NORMALIZE=normalize, H=hidden,
            BLOCK=power_of_2(hidden), PARTS=parts, PARTS_PAD=power_of_2(max(1, parts)), num_warps=4 if parts else 1,
            **launch_options(logits),
        )  # fmt: skip
    return Routing(ids, weights, normed)
