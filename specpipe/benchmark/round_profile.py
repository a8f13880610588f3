"""Where a round's device time goes, kernel by kernel, as torch.profiler sees it."""

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
    """One kernel of a round; on a CPU one operator, without the operators that it calls."""

    name: str
    calls: float
    """A round."""
    us: float
    """A round. A kernel that was launched early (programmatic dependent launch) is charged its wait."""
    share: float
    """Of the sum over all kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundProfile:
    """Rounds of one batch size and K, each launched as soon as the engine can."""

    rounds: int
    round_us: float
    """From the first kernel's start to the last one's end, over the rounds."""
    idle_share: float
    """Of that time: no kernel ran. On a CPU: no operator, which is time in Python."""
    kernels: tuple[KernelTime, ...]
    """Most time first."""


def profile_rounds(step: Callable[[], object], device: torch.device, rounds: int) -> RoundProfile:
    """Runs `step`, which launches one round, so many times under the profiler."""
    if device.type == "cuda":
        _record(step, device, 1)  # sets CUPTI up
    return summarise(_record(step, device, rounds), rounds)


def _record(step: Callable[[], object], device: torch.device, rounds: int) -> list[tuple[str, float, float, float]]:
    """→ name, start, end and own time of every kernel, in µs."""
    on_gpu = device.type == "cuda"
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    _synchronize(device)
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:  # without: torch 2.11 warns of more cycles
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


def summarise(kernels: Iterable[tuple[str, float, float, float]], rounds: int) -> RoundProfile:
    """kernels: name, start, end and own time of each, in µs, in any order; at least one."""
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
        idle_share=1 - covered(spans) / wall,
        kernels=tuple(
            KernelTime(name=name, calls=calls[name] / rounds, us=time / rounds, share=time / total)
            for name, time in sorted(times.items(), key=lambda item: -item[1])
        ),
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
