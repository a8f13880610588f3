"""Programmatic dependent launch: a kernel may start while its predecessor still runs, and waits before it reads.

Hopper and newer (PTX griddepcontrol). Every kernel launched with `launch_options` must call `wait_for_inputs` before it
touches what an earlier kernel wrote, and then `let_next_start`: then a chain of small kernels has no launch gaps.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Everything that earlier kernels wrote is visible after this."""
    if PDL:
        gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """The next kernel may start now: it waits for this one's end by itself."""
    if PDL:
        gdc_launch_dependents()


@cache
def _has_pdl(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


def launch_options(tensor: Tensor) -> dict[str, bool]:
    """Keywords for the launch of a kernel with a PDL argument: {"PDL": …, "launch_pdl": …}."""
    if tensor.device.type != "cuda" or not _has_pdl(tensor.device):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}
