"""Where a step's time goes, phase by phase, without making the host wait for the device."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from specpipe.core import Phase

PhaseSeconds = dict[Phase, float]


class PhaseClock(Protocol):
    """`start`, then `mark(phase)` after each stretch of work: the stretch is charged to that phase."""

    def start(self) -> None: ...

    def mark(self, phase: Phase) -> None: ...

    def take(self) -> PhaseSeconds:
        """Seconds by phase of the work that is known to be finished, since the last call."""
        ...


class HostClock:
    """For a CPU, where an operation is done when its call returns."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._seconds: PhaseSeconds = {}

    def start(self) -> None:
        self._last = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def take(self) -> PhaseSeconds:
        taken, self._seconds = self._seconds, {}
        return taken


class CudaClock:
    """For a GPU: events on the stream, read once the device has passed them."""

    def __init__(self) -> None:
        self._last: torch.cuda.Event | None = None
        self._spans: list[tuple[Phase, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        self._last = self._record()

    def mark(self, phase: Phase) -> None:
        now = self._record()
        if self._last is not None:
            self._spans.append((phase, self._last, now))
        self._last = now

    @staticmethod
    def _record() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> PhaseSeconds:
        seconds: PhaseSeconds = {}
        finished = 0
        for phase, begin, end in self._spans:
            if not end.query():
                break
            seconds[phase] = seconds.get(phase, 0.0) + begin.elapsed_time(end) / 1000
            finished += 1
        del self._spans[:finished]
        return seconds


def clock_for(device: torch.device) -> PhaseClock:
    return CudaClock() if device.type == "cuda" else HostClock()
