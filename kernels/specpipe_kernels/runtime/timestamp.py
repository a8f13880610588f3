"""The device's clock, written by a kernel, so that captured graphs can contain timestamps."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer


@triton.jit(do_not_specialize=["index"])
def _timestamp_kernel(stamps, index):
    tl.store(stamps + index, globaltimer())


def timestamp(stamps: Tensor, index: int) -> None:
    """See `specpipe_kernels.timestamp`."""
    _timestamp_kernel[(1,)](stamps, index, num_warps=1)
