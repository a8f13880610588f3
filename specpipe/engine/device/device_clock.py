"""Where a step's time goes, phase by phase, as the device sees it and without making the host wait.

Stamps are written by the stream itself, inside captured graphs too, and read together with what the round emitted.
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


_ROUND: tuple[tuple[Phase, Mark, Mark], ...] = (
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
        """All work that was queued so far, and nothing else, stands before this point."""
        timestamp(self.stamps, int(point))


class StepTimes(NamedTuple):
    """What the device spent on a step."""

    phases: dict[Phase, float]
    """Seconds by phase."""
    round_s: float
    """From the end of the round before to the end of this one where nothing else ran between them, so that time in
    which the device waited for the host counts; else of the round alone."""
    draft_prefill_s: float
    """Of the prefill: the draft model's part."""


class StampReader:
    """Turns the stamps of one step after the other into seconds."""

    def __init__(self) -> None:
        self._ended = 0
        """When the last round ended; 0 where it has no successor yet whose waiting means anything."""

    def forget(self) -> None:
        """The device is given nothing for now: what passes until the next round is nobody's."""
        self._ended = 0

    def read(self, stamps: Tensor, *, prefilled: bool, round_ran: bool) -> StepTimes:
        """stamps [marks]: on the host."""
        at = stamps.tolist()
        phases: dict[Phase, float] = {}
        draft_prefill_s = round_s = 0.0
        if prefilled:
            phases["prefill"] = (at[Mark.PREFILLED] - at[Mark.PREFILL_BEGIN]) / 1e9
            draft_prefill_s = (at[Mark.PREFILLED] - at[Mark.TARGET_PREFILLED]) / 1e9
        if round_ran:
            phases |= {phase: (at[end] - at[begin]) / 1e9 for phase, begin, end in _ROUND}
            begin = at[Mark.ROUND_BEGIN] if prefilled or not self._ended else self._ended
            round_s = (at[Mark.SAMPLED] - begin) / 1e9
        self._ended = at[Mark.SAMPLED] if round_ran else 0
        return StepTimes(phases, round_s, draft_prefill_s)
