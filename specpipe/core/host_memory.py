"""Memory of this machine, or of the container that this process runs in, and the part of it for KV pages on a CPU."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CPU_MEMORY_SHARE = 0.25
"""Share of the memory for KV pages of a CPU worker: weights, activations and the user's own work need the rest."""
CPU_FREE_SHARE = 0.8
"""Share of the memory that is free beside the weights, at most."""
KEPT_BLOCK, KEPT = 32 << 20, 64 << 20
"""Bytes of a block that malloc keeps when it is freed (the most that glibc allows), and of all free memory at the end
of a heap."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Makes malloc keep what is freed for the next allocation. Does nothing without glibc.

    A round on a CPU allocates and frees the same megabytes again and again. Where glibc returned them to the system
    meanwhile, rounds with drafts took up to 1.4 times as long, by chance of the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, KEPT)


def free_memory() -> int:
    """Returns the bytes that processes can still take."""
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    available = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return available if limit is None or used is None else min(available, max(0, limit - used))


def total_memory() -> int:
    """Returns the bytes of the machine, or of the container's limit if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _cgroup("memory.max") or total)


def cpu_kv_budget(*, weights: int = 0, workers: int = 1) -> int:
    """Returns the bytes for KV pages of each CPU worker of this machine.

    weights: bytes of a worker's weights that are not loaded yet.
    """
    free = free_memory() - weights * workers
    return max(0, int(min(CPU_MEMORY_SHARE * total_memory(), CPU_FREE_SHARE * free / workers)))


def _cgroup(name: str) -> int | None:
    """Returns a number of this container's control group (version 2); None where there is no limit."""
    try:
        text = Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
