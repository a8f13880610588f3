"""Durations of a step's phases, measured on the device without making the host wait.

The stream itself writes the time stamps, inside captured graphs too; they are read together with the round's tokens.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import Phase
from specpipe_kernels import timestamp


class Mark(IntEnum):
    """Points of a step; each but the first of its group ends a phase."""

    PREFILL_BEGIN = 0
    TARGET_PREFILLED = 1
    PREFILLED = 2
    ROUND_BEGIN = 3
    DRAFTED = 4
    VERIFIED = 5
    SAMPLED = 6


_ROUND_PHASES: tuple[tuple[Phase, Mark, Mark], ...] = (
    ("draft", Mark.ROUND_BEGIN, Mark.DRAFTED),
    ("verify", Mark.DRAFTED, Mark.VERIFIED),
    ("sample", Mark.VERIFIED, Mark.SAMPLED),
)


class DeviceClock:
    """The latest time of every mark, in device memory."""

    def __init__(self, device: torch.device) -> None:
        self.stamps = torch.zeros(len(Mark), dtype=torch.int64, device=device)
        """[marks] int64 nanoseconds."""

    def mark(self, point: Mark) -> None:
        """Queues a time stamp behind all work that was queued so far."""
        timestamp(self.stamps, int(point))


class StepTimes(NamedTuple):
    """Device seconds of one step."""

    phases: dict[Phase, float]
    """Seconds by phase."""
    round_s: float
    """Seconds from the end of the previous round to the end of this one if nothing else ran between them, so that
    time in which the device waited for the host counts; else the seconds of the round alone."""
    draft_prefill_s: float
    """Seconds of the draft model's part of the prefill."""


class StampReader:
    """Converts the stamps of consecutive steps to seconds."""

    def __init__(self) -> None:
        self._round_end = 0
        """Time stamp of the end of the last round; 0 if the gap to the next one is not to be counted."""

    def reset(self) -> None:
        """Call when idle: the gap until the next round is charged to no round."""
        self._round_end = 0

    def read(self, stamps: Tensor, *, prefilled: bool, round_ran: bool) -> StepTimes:
        """Returns the times of one step. stamps [marks] int64 nanoseconds, on the host."""
        at = stamps.tolist()
        phases: dict[Phase, float] = {}
        draft_prefill_s = round_s = 0.0
        if prefilled:
            phases["prefill"] = (at[Mark.PREFILLED] - at[Mark.PREFILL_BEGIN]) / 1e9
            draft_prefill_s = (at[Mark.PREFILLED] - at[Mark.TARGET_PREFILLED]) / 1e9
        if round_ran:
            phases |= {phase: (at[end] - at[begin]) / 1e9 for phase, begin, end in _ROUND_PHASES}
            begin = at[Mark.ROUND_BEGIN] if prefilled or not self._round_end else self._round_end
            round_s = (at[Mark.SAMPLED] - begin) / 1e9
        self._round_end = at[Mark.SAMPLED] if round_ran else 0
        return StepTimes(phases, round_s, draft_prefill_s)
