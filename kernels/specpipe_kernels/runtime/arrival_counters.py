"""Counters of programs that have stored their part of a shared result; the last one combines the parts."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from specpipe_kernels.runtime.sizes import power_of_2


@cache
def _counters(device: torch.device, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)


def arrivals(like: Tensor, results: int) -> Tensor:
    """Returns [>= results] int32 counters on the device of `like`, one for each shared result.

    Every launch finds zeros and leaves zeros. All kernels of a device share one buffer, so only one stream may use it:
    kernels that run at the same time must not share counters.
    """
    return _counters(like.device, max(1 << 16, power_of_2(results)))
