"""GPUs of this machine and their memory, found without torch and without initialising one."""

from __future__ import annotations

import glob
import os
import subprocess

_QUERY_S = 10.0


def visible_gpus() -> int:
    """Returns the number of GPUs of the driver that CUDA_VISIBLE_DEVICES leaves, as Ray counts them."""
    installed = len(glob.glob("/dev/nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return installed
    names = [name.strip() for name in chosen.split(",")]
    usable = names[: names.index("-1")] if "-1" in names else names  # CUDA ignores everything after an invalid entry
    return min(installed, len([name for name in usable if name]))


def gpu_memory() -> int:
    """Returns the bytes of the driver's smallest GPU; 0 where the driver does not say."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_S, check=True).stdout.split()
        return min(int(mib) for mib in found) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
