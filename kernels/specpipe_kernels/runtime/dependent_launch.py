"""How kernels follow and share: programmatic dependent launch, and counters of programs that arrived.

With programmatic dependent launch (Hopper and newer, PTX griddepcontrol) a kernel may start while its predecessor
finishes. Every kernel launched with `launch_options` must call `wait_for_inputs` before it touches what the kernel
before it wrote, and `let_next_start` after that, when its own reading is done: earlier, the next kernel's programs
would take the room that its last ones need (measured: 1 to 7 % of a round slower than without). Sampling and
verification say it right after the wait: their programs are few, and what follows them is small (measured: 1 to 11 %
faster). As every kernel waits before it lets the next one start, what lies two or more launches back is complete when
a kernel starts, and may be read before it waits.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specpipe_kernels.runtime.backend import gpu_of


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
    gpu = gpu_of(tensor.device)
    if gpu is None or not _has_pdl(gpu):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}
