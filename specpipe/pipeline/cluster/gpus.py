"""How many GPUs this machine offers, without torch and without touching one."""

from __future__ import annotations

import glob
import os


def visible_gpus() -> int:
    """GPUs that CUDA_VISIBLE_DEVICES leaves of those that the driver shows; what Ray will count too."""
    there = len(glob.glob("/dev/nvidia[0-9]*"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    names = [name.strip() for name in chosen.split(",")]
    usable = names[: names.index("-1")] if "-1" in names else names  # CUDA stops at the first that it does not know
    return min(there, len([name for name in usable if name]))
