"""What rounds and prefills take on this device, before the first row: of slots that no row holds; nothing is committed.

A GPU that works without a break slows down until it draws no more power than it may (an H200's rounds of 256 rows by 15
to 25 %). So it is heated first, rounds are queued one behind the other as those of a job are, and those of many rows
are timed before those of few.
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

_HEAT = 0.3  # of the time, at most, for rounds that are not timed
_ROUNDS = 0.8  # of the time when the last round is timed, at most; what is left is for prefills
_TIMED = 5  # rounds of a point
_POINT_S = 0.15  # of a point, where more rounds than these fit
_MOST = 64  # rounds of a point
_AHEAD = 4  # rounds that the host is ahead of the device
_PREFILLS = (16, 128, 1024)  # tokens
_FORWARDS = 3  # of each
DraftPrefill = Callable[[int], None]
"""Prefills so many tokens by the draft model."""


class Point(NamedTuple):
    """A shape of rounds to be timed."""

    running: int
    key: RoundKey


class Profiler:
    """Times what it can in `within_s` seconds from now on."""

    def __init__(self, rounds: Rounds, clock: DeviceClock, *, within_s: float) -> None:
        self._rounds, self._clock = rounds, clock
        self._device = clock.stamps.device
        self._on_gpu = self._device.type == "cuda"
        self._queued: deque[torch.cuda.Event] = deque()
        self._began, self._within_s = time.perf_counter(), within_s

    def profile(
        self, points: Sequence[Point], draft_prefill: DraftPrefill | None, *, context: float, most: int
    ) -> Profile:
        """points: the most telling first; context: tokens of each slot; most: tokens that are prefilled at once."""
        widest = max(points, key=lambda point: point.running * (point.key.k + 1))
        if self._on_gpu:
            while self._left(_HEAT) > 0:
                self._run(widest)
            points = sorted(points, key=lambda point: -point.running)
        timed = tuple(self._points(points, context))
        prefills = () if draft_prefill is None else tuple(self._prefills(draft_prefill, widest, most))
        return Profile(rounds=timed, draft_prefills=prefills)

    def _left(self, until: float = 1.0) -> float:
        """Seconds until this share of the time is over."""
        return until * self._within_s - (time.perf_counter() - self._began)

    def _run(self, point: Point) -> None:
        """Queues a round, while the device works on a few that came before."""
        self._rounds.run(list(range(point.running)), point.key)
        if self._on_gpu:
            self._queued.append(torch.cuda.Event())
            self._queued[-1].record()
            if len(self._queued) > _AHEAD:
                self._queued.popleft().synchronize()

    def _points(self, points: Sequence[Point], context: float) -> Iterator[CostPoint]:
        for place, point in enumerate(points):
            within_s = min(_POINT_S, self._left(_ROUNDS) / (len(points) - place))
            if seconds := self._round_times(point, within_s):
                yield CostPoint(
                    proposer=point.key.proposer,
                    k=point.key.k,
                    running=point.running,
                    context=context,
                    rounds=len(seconds),
                    seconds=len(seconds) * median(seconds),
                )

    def _round_times(self, point: Point, within_s: float) -> list[float]:
        """Seconds of each round but the first, which pays for what the others find ready."""
        began, stamps = time.perf_counter(), list[Tensor]()
        while self._left(_ROUNDS) > 0 and len(stamps) <= _MOST:
            self._run(point)
            stamps.append(self._clock.stamps.clone())
            if len(stamps) > _TIMED and (not self._on_gpu or time.perf_counter() - began > within_s):
                break
        reader = StampReader()
        times = [reader.read(at, prefilled=False, round_ran=True).round_s for at in _on_host(stamps)]
        return times[1:]

    def _prefills(self, draft_prefill: DraftPrefill, point: Point, most: int) -> Iterator[PrefillPoint]:
        """`point`: rounds between them, for a GPU to stay hot and the host ahead, as in a job."""
        for tokens in sorted({min(size, most) for size in _PREFILLS}):
            stamps: list[Tensor] = []
            while self._left() > 0 and len(stamps) <= _FORWARDS:
                if self._on_gpu:
                    self._run(point)
                self._clock.mark(Mark.TARGET_PREFILLED)
                draft_prefill(tokens)
                self._clock.mark(Mark.PREFILLED)
                stamps.append(self._clock.stamps.clone())
            times = [float(at[Mark.PREFILLED] - at[Mark.TARGET_PREFILLED]) / 1e9 for at in _on_host(stamps)][1:]
            if times:
                count, seconds = len(times), median(times)
                yield PrefillPoint(forwards=count, tokens=count * tokens, seconds=count * seconds)
            if not times or seconds * _PREFILLS[1] / _PREFILLS[0] * (_FORWARDS + 1) > self._left():
                return  # the next one is too long


def _on_host(stamps: Sequence[Tensor]) -> Sequence[Tensor]:
    return torch.stack(list(stamps)).cpu().unbind() if stamps else ()
