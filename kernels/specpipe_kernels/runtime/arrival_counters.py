"""Counters with which the last program that contributes to a result finds out that it is the last."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from specpipe_kernels.runtime.sizes import power_of_2


@cache
def _counters(device: torch.device, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)


def arrivals(like: Tensor, results: int) -> Tensor:
    """[>= results] int32: programs that share a result and have arrived. A launch finds zeros and leaves zeros.

    One stream a device uses them: kernels that run at the same time must not share them.
    """
    return _counters(like.device, max(1 << 16, power_of_2(results)))
