"""What rounds take on this device, before the first row: rounds of slots that no row holds, which commit nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from specpipe.core import CostPoint
from specpipe.engine.graphs import Rounds
from specpipe.engine.round_key import RoundKey
from specpipe.engine.timing import DeviceClock, StampReader

_TIMED = 5  # rounds of a point


class Point(NamedTuple):
    """A shape of rounds to be timed."""

    running: int
    key: RoundKey


def profile_rounds(
    rounds: Rounds, clock: DeviceClock, points: Iterable[Point], *, context: float, within_s: float
) -> Iterator[CostPoint]:
    """Times what it can in `within_s` seconds, in order. `context`: tokens of each slot."""
    began = time.perf_counter()
    for point in points:
        seconds: list[float] = []
        for timed in range(_TIMED + 1):
            if time.perf_counter() - began > within_s:
                break
            took = _one_round(rounds, clock, list(range(point.running)), point.key)
            if timed:  # the first one pays for what the others find ready
                seconds.append(took)
        if seconds:
            yield CostPoint(
                proposer=point.key.proposer,
                k=point.key.k,
                running=point.running,
                context=context,
                rounds=len(seconds),
                seconds=len(seconds) * sorted(seconds)[len(seconds) // 2],
            )


def _one_round(rounds: Rounds, clock: DeviceClock, slots: list[int], key: RoundKey) -> float:
    rounds.run(slots, key)
    if clock.stamps.device.type == "cuda":
        torch.cuda.synchronize(clock.stamps.device)
    return StampReader().read(clock.stamps.cpu(), prefilled=False, round_ran=True).round_s
