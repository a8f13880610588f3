"""Chooses the experts of each token, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.linear import linear
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.weights import Normed, Routing


def route_tokens(
    x: Normed, router: Tensor, bias: Tensor | None, top_k: int, *, normalize: bool, fp8: bool = False
) -> Routing:
    """See `specpipe_kernels.route_tokens`."""
    return choose_experts(linear(x, router, bias), x, top_k, normalize=normalize, fp8=fp8)


def choose_experts(logits: Tensor, x: Normed, top_k: int, *, normalize: bool, fp8: bool = False) -> Routing:
    """Returns the experts of each token by its logits [M, E]. Other arguments are those of `route_tokens`."""
    order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = torch.softmax(logits.float(), dim=-1).gather(1, order)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    assert x.squares is None, "the reference never leaves a norm pending"
    rows = quantize_rows(x.values, x.values.shape[1]) if fp8 else x.values
    return Routing(order.to(torch.int32), weights, rows)
