"""Chooses the experts of each token, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def route_tokens(logits: Tensor, top_k: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """See `specpipe_kernels.route_tokens`."""
    order = logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = torch.softmax(logits.float(), dim=-1).gather(1, order)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return order.to(torch.int32), weights
