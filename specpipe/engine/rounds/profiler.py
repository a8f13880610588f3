"""Seconds of rounds on this device, measured before the first row over slots without rows.

A GPU that works without a break slows down to stay within its power limit (an H200's rounds of 256 rows by 15 to 25 %).
So the GPU is heated up first, rounds are queued one behind the other as a job queues them, and those of many rows are
timed before those of few.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
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
        largest = max(points, key=lambda point: point.running * (point.key.k + 1))
        if self._on_gpu:
            while self._seconds_left(HEAT_UP_SHARE) > 0:
                self._run(largest)
            points = sorted(points, key=lambda point: -point.running)
        return Profile(rounds=tuple(self._time_points(points, context)))

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

    def _time_points(self, points: Sequence[ProfilePoint], context: float) -> Iterator[CostPoint]:
        for index, point in enumerate(points):
            within_s = min(POINT_S, self._seconds_left() / (len(points) - index))
            if seconds := self._time_rounds(point, within_s):
                yield CostPoint(
                    proposer=point.key.proposer,
                    k=point.key.k,
                    running=point.running,
                    context=context,
                    rounds=len(seconds),
                    seconds=len(seconds) * median(seconds),
                )

    def _time_rounds(self, point: ProfilePoint, within_s: float) -> list[float]:
        """Returns the seconds of each round but the first, which pays for one-time work such as a capture."""
        began, stamps = time.perf_counter(), list[Tensor]()
        while self._seconds_left() > 0 and len(stamps) <= MAX_TIMED_ROUNDS:
            self._run(point)
            stamps.append(self._clock.stamps.clone())
            if len(stamps) > MIN_TIMED_ROUNDS and (not self._on_gpu or time.perf_counter() - began > within_s):
                break
        reader = StampReader()
        times = [reader.read(at, prefilled=False, round_ran=True).round_s for at in _to_host(stamps)]
        return times[1:]


def _to_host(stamps: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copies stamps, [marks] int64 each, to the host in one copy."""
    return torch.stack(list(stamps)).cpu().unbind() if stamps else ()
