"""Hardware of this machine: GPUs, driver, free memory, mounted filesystems."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from specpipe.core import host_memory


class Gpu(NamedTuple):
    """A GPU visible under CUDA_VISIBLE_DEVICES. Memory in bytes."""

    number: int
    name: str
    free: int
    total: int
    capability: tuple[int, int]


class TorchProblem(NamedTuple):
    """Reason why torch cannot use the GPUs, and its remedy."""

    found: str
    remedy: str


def gpus() -> list[Gpu]:
    """Returns the GPUs that torch can use, with their present free memory."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        properties = torch.cuda.get_device_properties(index)
        found.append(Gpu(index, properties.name, free, total, (properties.major, properties.minor)))
    return found


def torch_problem(visible: int) -> TorchProblem | None:
    """Returns the reason why torch cannot use the `visible` GPUs; None where it can, or there are none."""
    import torch

    if not visible or torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return TorchProblem(
            f"{visible} GPU(s) are visible, but this torch is built for CPUs",
            "install a torch with CUDA: https://pytorch.org/get-started/locally",
        )
    return TorchProblem(
        f"{visible} GPU(s) are visible, but torch cannot initialize them; driver version: {driver_version()}",
        f"install a driver that supports CUDA {torch.version.cuda}, or a torch for an older CUDA; in a container, "
        "start it with --gpus all",
    )


def driver_version() -> str:
    """Returns the version of the NVIDIA driver; "not loaded" where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "not loaded"
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else "unknown"


def free_memory(device: str) -> int:
    """Returns free bytes: of the GPU with most for "cuda", of the machine or its container for "cpu"."""
    if device == "cuda":
        return max((gpu.free for gpu in gpus()), default=0)
    return host_memory.free_memory()


def mount_type(path: Path) -> str:
    """Returns the filesystem type of a path, existing or not; "unknown" where /proc/mounts does not list it."""
    path = Path(os.path.realpath(path))
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    mounts = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in (line.split() for line in lines)}
    return next((mounts[p] for p in (path, *path.parents) if p in mounts), "unknown")
