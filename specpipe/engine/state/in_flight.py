"""Steps that were launched on the device and whose results the host has not read yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.core import ProposerName
from specpipe.engine.state.row_state import RowState


class StepLaunch(NamedTuple):
    """The work of one step: a prefill chunk, a round, or both."""

    rows: Sequence[RowState] = ()
    """Rows of the round; none if the step has no round."""
    k: int = 0
    proposer: ProposerName = "none"
    saved_pages: int = 0
    """Reads of a KV page that groups of rows save in each layer's attention."""
    prefilled: bool = False
    """True if the step has a prefill."""
    draft_prefill_tokens: int = 0
    draft_behind: float = 0.0
    """Mean tokens of a row that the draft model's KV lacked."""
    scored: Sequence[tuple[RowState, int]] = ()
    """Score rows of the prefill, each with the number of tokens that it scored there."""
    captured_graph: bool = False
    """True if a graph was captured first, so that the round's duration is not typical."""


class StepInFlight(NamedTuple):
    """A launched step and the host memory that its results are copied to."""

    launch: StepLaunch
    packed: Tensor
    """The result of `Round` on the host: a row for each of the launch's and padding; valid once `done` has passed."""
    scores: Tensor
    """The result of `prefill` on the host, for the launch's `scored`; valid once `done` has passed."""
    stamps: Tensor
    """[marks] int64 nanoseconds on the host; valid once `done` has passed."""
    done: torch.cuda.Event | None
    """None on a CPU, where results are valid at once."""


def copy_to_host(launch: StepLaunch, packed: Tensor, scores: Tensor, stamps: Tensor) -> StepInFlight:
    """Queues the copy of a step's results to pinned host memory; does not wait.

    packed [B, …] int64: the result of `Round`; scores [n, 2] fp32: that of `prefill`; stamps [marks] int64.
    """
    if packed.device.type == "cpu":
        return StepInFlight(launch, packed, scores, stamps.clone(), None)
    copies = [_copied(result) for result in (packed, scores, stamps)]
    done = torch.cuda.Event()
    done.record()
    return StepInFlight(launch, copies[0], copies[1], copies[2], done)


def _copied(result: Tensor) -> Tensor:
    """Returns pinned host memory that a queued copy fills."""
    copy = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    return copy.copy_(result, non_blocking=True)


class StepsInFlight:
    """Queue of launched steps, oldest first."""

    def __init__(self, rounds_behind: int) -> None:
        """rounds_behind: steps that may be in flight before the oldest one is read."""
        self._rounds_behind = rounds_behind
        self._steps: deque[StepInFlight] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def next(self, launched: StepInFlight | None) -> StepInFlight | None:
        """Appends a launched step, if any; removes and returns the oldest step if it has to be read now."""
        if launched is not None:
            self._steps.append(launched)
        due = len(self._steps) > self._rounds_behind or (self._steps and launched is None)
        return self._steps.popleft() if due else None

    @property
    def rounds(self) -> Counter[RowState]:
        """Rounds in flight by row; each commits at least one of the row's tokens."""
        return Counter(row for step in self._steps for row in step.launch.rows)

    @property
    def plain_rounds(self) -> int:
        """Rounds in flight without drafts."""
        return sum(step.launch.k == 0 and bool(step.launch.rows) for step in self._steps)

    @property
    def max_new_tokens(self) -> int:
        """Upper bound on the tokens that rounds in flight add to one row."""
        return sum(step.launch.k + 1 for step in self._steps)
