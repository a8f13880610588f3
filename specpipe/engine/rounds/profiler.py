"""Seconds of rounds and draft prefills on this device, measured before the first row over slots without rows.

A GPU that works without a break slows down to stay within its power limit (an H200's rounds of 256 rows by 15 to 25 %).
So the GPU is heated up first, rounds are queued one behind the other as a job queues them, and those of many rows are
timed before those of few.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import CostPoint, PrefillPoint, Profile
from specpipe.engine.device.device_clock import DeviceClock, Mark, StampReader
from specpipe.engine.rounds.graphed_rounds import Rounds
from specpipe.engine.rounds.round_key import RoundKey

HEAT_UP_SHARE = 0.3
"""Share of the time for rounds that are not timed, at most."""
ROUNDS_SHARE = 0.8
"""Share of the time after which no round is timed; the rest is for prefills."""
MIN_TIMED_ROUNDS = 5
"""Timed rounds of each point, at least, where the time suffices."""
MAX_TIMED_ROUNDS = 64
"""Timed rounds of each point, at most."""
POINT_S = 0.15
"""Seconds of one point, once it has its minimum of rounds."""
QUEUED_ROUNDS = 4
"""Rounds that the host queues ahead of the device."""
PREFILL_SIZES = (16, 128, 1024)
"""Tokens of the prefills that are timed."""
TIMED_PREFILLS = 3
"""Timed prefills of each size."""

DraftPrefill = Callable[[int], None]
"""Prefills so many tokens by the draft model."""


class ProfilePoint(NamedTuple):
    """A kind of round to be timed."""

    running: int
    """Rows."""
    key: RoundKey


class Profiler:
    """Times rounds and prefills for at most `within_s` seconds from its construction."""

    def __init__(self, rounds: Rounds, clock: DeviceClock, *, within_s: float) -> None:
        self._rounds, self._clock = rounds, clock
        self._device = clock.stamps.device
        self._on_gpu = self._device.type == "cuda"
        self._queued: deque[torch.cuda.Event] = deque()
        self._began, self._within_s = time.perf_counter(), within_s

    def profile(
        self,
        points: Sequence[ProfilePoint],
        draft_prefill: DraftPrefill | None,
        *,
        context: float,
        max_prefill: int,
    ) -> Profile:
        """Returns the times of as many points, in order, and draft prefills as the time suffices for.

        context: tokens of each slot; max_prefill: tokens of one prefill, at most.
        """
        largest = max(points, key=lambda point: point.running * (point.key.k + 1))
        if self._on_gpu:
            while self._seconds_left(HEAT_UP_SHARE) > 0:
                self._run(largest)
            points = sorted(points, key=lambda point: -point.running)
        rounds = tuple(self._time_points(points, context))
        prefills = () if draft_prefill is None else tuple(self._time_prefills(draft_prefill, largest, max_prefill))
        return Profile(rounds=rounds, draft_prefills=prefills)

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
            within_s = min(POINT_S, self._seconds_left(ROUNDS_SHARE) / (len(points) - index))
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
        while self._seconds_left(ROUNDS_SHARE) > 0 and len(stamps) <= MAX_TIMED_ROUNDS:
            self._run(point)
            stamps.append(self._clock.stamps.clone())
            if len(stamps) > MIN_TIMED_ROUNDS and (not self._on_gpu or time.perf_counter() - began > within_s):
                break
        reader = StampReader()
        times = [reader.read(at, prefilled=False, round_ran=True).round_s for at in _to_host(stamps)]
        return times[1:]

    def _time_prefills(
        self, draft_prefill: DraftPrefill, between: ProfilePoint, max_prefill: int
    ) -> Iterator[PrefillPoint]:
        """between: rounds that run between prefills, as in a job, to keep a GPU hot and the host ahead of it."""
        for tokens in sorted({min(size, max_prefill) for size in PREFILL_SIZES}):
            stamps: list[Tensor] = []
            while self._seconds_left() > 0 and len(stamps) <= TIMED_PREFILLS:
                if self._on_gpu:
                    self._run(between)
                self._clock.mark(Mark.TARGET_PREFILLED)
                draft_prefill(tokens)
                self._clock.mark(Mark.PREFILLED)
                stamps.append(self._clock.stamps.clone())
            times = [float(at[Mark.PREFILLED] - at[Mark.TARGET_PREFILLED]) / 1e9 for at in _to_host(stamps)][1:]
            if times:
                count, seconds = len(times), median(times)
                yield PrefillPoint(forwards=count, tokens=count * tokens, seconds=count * seconds)
            growth = PREFILL_SIZES[1] / PREFILL_SIZES[0]
            if not times or seconds * growth * (TIMED_PREFILLS + 1) > self._seconds_left():
                return  # the time does not suffice for the next size


def _to_host(stamps: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copies stamps, [marks] int64 each, to the host in one copy."""
    return torch.stack(list(stamps)).cpu().unbind() if stamps else ()
