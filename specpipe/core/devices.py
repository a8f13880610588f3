"""Device and number format names, and the format that "auto" stands for."""

from __future__ import annotations

from typing import Literal

DeviceName = Literal["cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value in each format."""


def dtype_on(device: DeviceName, dtype: DtypeName | Literal["auto"]) -> DtypeName:
    """Returns `dtype` itself, or for "auto" the device's format: bfloat16 on CUDA, float32 on a CPU."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device == "cuda" else "float32"
