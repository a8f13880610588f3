"""Device time of decoding rounds by kernel, measured with torch.profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """Time of one kernel; on a CPU of one operator, excluding the operators that it calls."""

    name: str
    calls: float
    """Calls per round."""
    us: float
    """µs per round. Includes the wait of kernels that were launched early (programmatic dependent launch)."""
    share: float
    """Share of the sum over all kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundProfile:
    """Profile of consecutive rounds of one batch size and K."""

    rounds: int
    round_us: float
    """µs per round: start of the first kernel to end of the last one, divided by the rounds."""
    idle_share: float
    """Share of that time in which no kernel ran. On a CPU: no operator ran, which is time spent in Python."""
    kernels: tuple[KernelTime, ...]
    """Sorted by time, largest first."""


def profile_rounds(step: Callable[[], object], device: torch.device, rounds: int) -> RoundProfile:
    """Calls `step`, which launches one round, `rounds` times under the profiler."""
    if device.type == "cuda":
        _record(step, device, 1)  # initialises CUPTI, which is slow the first time
    return summarise_kernels(_record(step, device, rounds), rounds)


def _record(step: Callable[[], object], device: torch.device, rounds: int) -> list[tuple[str, float, float, float]]:
    """Returns (name, start, end, own time) of every kernel; times in µs."""
    on_gpu = device.type == "cuda"
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    _synchronize(device)
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    # Without acc_events, torch 2.11 warns about a second profiling cycle.
    with profile(activities=[activity], acc_events=True) as profiler:
        for _ in range(rounds):
            step()
        _synchronize(device)
    events: list[Any] = [event for event in profiler.events() or () if event.device_type == wanted]
    return [
        (
            event.name,
            event.time_range.start,
            event.time_range.end,
            event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total,
        )
        for event in events
    ]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summarise_kernels(kernels: Iterable[tuple[str, float, float, float]], rounds: int) -> RoundProfile:
    """Returns the profile of kernels given as (name, start, end, own time) in µs, in any order; at least one."""
    kernels = list(kernels)
    calls: defaultdict[str, int] = defaultdict(int)
    times: defaultdict[str, float] = defaultdict(float)
    for name, _, _, own in kernels:
        calls[name] += 1
        times[name] += own
    spans = [(start, end) for _, start, end, _ in kernels]
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    total = sum(times.values())
    return RoundProfile(
        rounds=rounds,
        round_us=wall / rounds,
        idle_share=1 - union_length(spans) / wall,
        kernels=tuple(
            KernelTime(name=name, calls=calls[name] / rounds, us=time / rounds, share=time / total)
            for name, time in sorted(times.items(), key=lambda item: -item[1])
        ),
    )


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals (start, end)."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
