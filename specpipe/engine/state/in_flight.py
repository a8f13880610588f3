"""Work that was launched and not read yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import ProposerName
from specpipe.engine.state.row_state import RowState


class Launch(NamedTuple):
    """What a step asked the device to do: a prefill chunk, a round, or both."""

    rows: Sequence[RowState] = ()
    k: int = 0
    proposer: ProposerName = "none"
    prefilled: bool = False
    draft_prefill_tokens: int = 0
    draft_behind: float = 0.0
    left: float = 0.0
    steady: bool = True
    """False where a graph had to be captured first."""


class Flight(NamedTuple):
    """A launch, and where its results will lie."""

    launch: Launch
    packed: Tensor
    """What `Round` gives, on the host: a row for each of the launch's and padding; valid once `done` has passed."""
    stamps: Tensor
    """[marks] int64 on the host, likewise."""
    done: torch.cuda.Event | None


def read_later(launch: Launch, packed: Tensor, stamps: Tensor) -> Flight:
    """Queues the copy of what a step did to the host. packed, stamps [marks]: on the device."""
    if packed.device.type == "cpu":
        return Flight(launch, packed, stamps.clone(), None)
    copies = []
    for given in (packed, stamps):
        copies.append(torch.empty(given.shape, dtype=given.dtype, pin_memory=True))
        copies[-1].copy_(given, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return Flight(launch, copies[0], copies[1], done)


class InFlight:
    """Flights, oldest first."""

    def __init__(self, behind: int) -> None:
        """behind: rounds that may be under way before the oldest one is read."""
        self._behind = behind
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def next(self, launched: Flight | None) -> Flight | None:
        """Takes what a step launched; → what it has to read, if anything is due."""
        if launched is not None:
            self._flights.append(launched)
        due = len(self._flights) > self._behind or (self._flights and launched is None)
        return self._flights.popleft() if due else None

    @property
    def rounds(self) -> Counter[RowState]:
        """How many rounds each row takes part in: each commits at least one of its tokens."""
        return Counter(row for flight in self._flights for row in flight.launch.rows)

    @property
    def plain_rounds(self) -> int:
        """Rounds without drafts."""
        return sum(flight.launch.k == 0 and bool(flight.launch.rows) for flight in self._flights)

    @property
    def most_tokens(self) -> int:
        """That a row may get by them."""
        return sum(flight.launch.k + 1 for flight in self._flights)
