"""When the device reached a point of its work: the contract, and the choice of the implementation."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation


def timestamp(stamps: Tensor, index: int) -> None:
    """Write nanoseconds of a steady clock to stamps[index] (int64) once all earlier work of the stream is done.

    On a GPU its global timer, whose steps are about a microsecond; it can be captured in a CUDA graph.
    """
    implementation("runtime.timestamp", stamps)(stamps, index)
