"""Seconds of rounds on this device, measured before the first row over slots without rows.

A GPU that works without a break slows down to stay within its power limit (an H200's rounds of 256 rows by 15 to 25 %).
So the GPU is heated up first, rounds are queued one behind the other as a job queues them, and those of many rows are
timed before those of few.

On a CPU the kinds of rounds take turns: other processes slow it down for tenths of a second, and then all kinds alike.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import CostPoint, Profile
from specpipe.engine.device.device_clock import DeviceClock, StampReader
from specpipe.engine.rounds.graphed_rounds import Rounds
from specpipe.engine.rounds.round_key import RoundKey

HEAT_UP_SHARE = 0.3
"""Share of the time for rounds that are not timed, at most."""
MIN_TIMED_ROUNDS = 5
"""Timed rounds of each point, at least, where the time suffices."""
MAX_TIMED_ROUNDS = 64
"""Timed rounds of each point, at most."""
POINT_S = 0.15
"""Seconds of one point, once it has its minimum of rounds."""
QUEUED_ROUNDS = 4
"""Rounds that the host queues ahead of the device."""
CPU_TURNS = 10
"""Timed rounds of each point on a CPU. Those of the embedded pair take 1 s together."""


class ProfilePoint(NamedTuple):
    """A kind of round to be timed."""

    running: int
    """Rows."""
    key: RoundKey


class Profiler:
    """Times rounds for at most `within_s` seconds from its construction."""

    def __init__(self, rounds: Rounds, clock: DeviceClock, *, within_s: float) -> None:
        self._rounds, self._clock = rounds, clock
        self._device = clock.stamps.device
        self._on_gpu = self._device.type == "cuda"
        self._queued: deque[torch.cuda.Event] = deque()
        self._began, self._within_s = time.perf_counter(), within_s

    def profile(self, points: Sequence[ProfilePoint], *, context: float) -> Profile:
        """Returns the times of as many points, in order, as the time suffices for. context: tokens of each slot."""
        if not self._on_gpu:
            return _profile(points, self._time_in_turns(points), context)
        largest = max(points, key=lambda point: point.running * (point.key.k + 1))
        while self._seconds_left(HEAT_UP_SHARE) > 0:
            self._run(largest)
        points = sorted(points, key=lambda point: -point.running)
        times = [
            self._time_rounds(point, min(POINT_S, self._seconds_left() / (len(points) - index)))
            for index, point in enumerate(points)
        ]
        return _profile(points, times, context)

    def _seconds_left(self, share: float = 1.0) -> float:
        """Returns the seconds until this share of the time is over."""
        return share * self._within_s - (time.perf_counter() - self._began)

    def _run(self, point: ProfilePoint) -> None:
        """Queues a round; waits while more than `QUEUED_ROUNDS` are queued."""
        self._rounds.run(list(range(point.running)), point.key)
        if self._on_gpu:
            self._queued.append(torch.cuda.Event())
            self._queued[-1].record()
            if len(self._queued) > QUEUED_ROUNDS:
                self._queued.popleft().synchronize()

    def _time_in_turns(self, points: Sequence[ProfilePoint]) -> list[list[float]]:
        """Returns the seconds of each point's rounds but the first, as `_time_rounds`. For a CPU."""
        reader, times = StampReader(), [list[float]() for _ in points]
        for _ in range(CPU_TURNS + 1):
            for point, seconds in zip(points, times, strict=True):
                if self._seconds_left() > 0:
                    self._run(point)
                    seconds.append(reader.read(self._clock.stamps, prefilled=False, round_ran=True).round_s)
        return [seconds[1:] for seconds in times]

    def _time_rounds(self, point: ProfilePoint, within_s: float) -> list[float]:
        """Returns the seconds of each round but the first, which pays for one-time work such as a capture."""
        began, stamps = time.perf_counter(), list[Tensor]()
        while self._seconds_left() > 0 and len(stamps) <= MAX_TIMED_ROUNDS:
            self._run(point)
            stamps.append(self._clock.stamps.clone())
            if len(stamps) > MIN_TIMED_ROUNDS and time.perf_counter() - began > within_s:
                break
        reader = StampReader()
        times = [reader.read(at, prefilled=False, round_ran=True).round_s for at in _to_host(stamps)]
        return times[1:]


def _profile(points: Sequence[ProfilePoint], times: Sequence[Sequence[float]], context: float) -> Profile:
    """Returns the median of each point that has times. context: tokens of a row."""
    return Profile(
        rounds=tuple(
            CostPoint(
                proposer=point.key.proposer,
                k=point.key.k,
                running=point.running,
                context=context,
                rounds=len(seconds),
                seconds=len(seconds) * median(seconds),
            )
            for point, seconds in zip(points, times, strict=True)
            if seconds
        )
    )


def _to_host(stamps: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copies stamps, [marks] int64 each, to the host in one copy."""
    return torch.stack(list(stamps)).cpu().unbind() if stamps else ()
