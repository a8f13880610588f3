"""Resolution of "auto" for devices and dtypes, and the size of a number in each dtype."""

from __future__ import annotations

from collections.abc import Mapping

from specpipe.core.literals import DeviceChoice, DeviceName, DtypeChoice, DtypeName

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""


def resolve_device(device: DeviceChoice, *, gpus: float) -> DeviceName:
    """Returns the device of a worker. "auto" is CUDA where there are GPUs. `gpus`: GPUs of the machine or cluster."""
    if device == "auto":
        return "cuda" if gpus else "cpu"
    return device


def resolve_dtype(dtype: DtypeChoice, device: DeviceName) -> DtypeName:
    """Returns the dtype of weights and activations on `device`. "auto" is bfloat16 on CUDA and float32 on a CPU."""
    if dtype == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return dtype
