"""Number of GPUs of this machine, found without torch and without initialising one."""

from __future__ import annotations

import glob
import os


def visible_gpus() -> int:
    """Returns the number of GPUs of the driver that CUDA_VISIBLE_DEVICES leaves, as Ray counts them."""
    installed = len(glob.glob("/dev/nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return installed
    names = [name.strip() for name in chosen.split(",")]
    usable = names[: names.index("-1")] if "-1" in names else names  # CUDA ignores everything after an invalid entry
    return min(installed, len([name for name in usable if name]))
