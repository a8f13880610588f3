"""Resolution of "auto" for devices and dtypes, the size of a number in each dtype, and what a CPU computes fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specpipe.core.literals import DeviceChoice, DeviceName, DtypeChoice, DtypeName

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, and Arm's name for its own


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


def has_bf16_products(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Returns True if the CPU multiplies bfloat16 numbers with instructions of its own, by its list of features."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return False
    flags = (line.partition(":")[2] for line in text.splitlines() if line.lower().startswith(("flags", "features")))
    return not _BF16.isdisjoint(next(flags, "").split())
