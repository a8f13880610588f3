"""Counters of programs that have stored their part of a shared result; the last one combines the parts."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.sizes import power_of_2

# A module variable, because every launch leaves zeros and no caller of an operation has a choice to make: an argument
# would pass through every operation and model layer. Captured graphs own the buffers that they read (`counters_of`).
_COUNTERS: dict[tuple[torch.device, int], Tensor] = {}


def arrivals(like: Tensor, results: int) -> Tensor:
    """Returns [>= results] int32 counters on the device of `like`, one for each shared result.

    Every launch finds zeros and leaves zeros. All kernels of a device share one buffer, so only one stream may use it:
    kernels that run at the same time must not share counters.
    """
    key = like.device, max(1 << 16, power_of_2(results))
    if key not in _COUNTERS:
        _COUNTERS.setdefault(key, torch.zeros(key[1], dtype=torch.int32, device=key[0]))
    return _COUNTERS[key]


def counters_of(device: torch.device) -> tuple[Tensor, ...]:
    """Returns all counters of a device so far, each [counters] int32.

    Whoever captures kernels in a graph keeps them as long as the graph, which holds addresses alone.
    """
    return tuple(counters for (owner, _), counters in list(_COUNTERS.items()) if owner == device)
