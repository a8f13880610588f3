"""Where a step's time goes, phase by phase, as the device sees it and without making the host wait.

Stamps are written by the stream itself, inside captured graphs too, and read together with what the round emitted.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from specpipe.core import Phase
from specpipe_kernels import timestamp


class Mark(IntEnum):
    """Points of a step; each but the first of its group ends a phase."""

    PREFILL_BEGIN = 0
    PREFILLED = 1
    ROUND_BEGIN = 2
    DRAFTED = 3
    VERIFIED = 4
    SAMPLED = 5


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


def phase_seconds(stamps: Tensor, *, prefilled: bool, round_ran: bool) -> dict[Phase, float]:
    """stamps [marks] on the host → seconds by phase of the step that wrote them."""
    at = stamps.tolist()
    seconds: dict[Phase, float] = {}
    if prefilled:
        seconds["prefill"] = (at[Mark.PREFILLED] - at[Mark.PREFILL_BEGIN]) / 1e9
    if round_ran:
        seconds |= {phase: (at[end] - at[begin]) / 1e9 for phase, begin, end in _ROUND}
    return seconds
