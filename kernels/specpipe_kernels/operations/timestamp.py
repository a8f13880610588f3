"""Timestamps of the device, also inside CUDA graphs."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation


def timestamp(stamps: Tensor, index: int) -> None:
    """Writes nanoseconds of a steady clock to stamps[index] (int64) once all earlier work of the stream is done.

    On a GPU it is the global timer, with a resolution of about 1 µs; the write can be captured in a CUDA graph.
    """
    implementation("runtime.timestamp", stamps)(stamps, index)
