"""Where the rows of a simulated worker stand, round by round, though rows end and others get their slots.

Shapes: m rounds with the same K, w rows that run in some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specpipe.simulator.draws import Ints
from specpipe.simulator.row_queue import RowQueue

Walk = Callable[[Ints, Ints, int], Ints]
"""As `Draws.walk`, with one K."""


class Paths(NamedTuple):
    """Where rows stand, the oldest first."""

    rows: Ints
    """[w]"""
    end: Ints
    """[w] the place where each ends."""
    begin: Ints
    """[w] the round in which each gets its slot, rising."""
    at: Ints
    """[m + 1, w] before each round and after the last: before it has its slot where it begins, later at its end."""
    left: Ints
    """[m, w] tokens that a row has still to generate; 0 where it does not run."""

    def until(self, rounds: int) -> Paths:
        """The first ones."""
        if rounds == len(self.left):
            return self
        w = int(np.searchsorted(self.begin, rounds))
        return Paths(self.rows[:w], self.end[:w], self.begin[:w], self.at[: rounds + 1, :w], self.left[:rounds, :w])

    def __add__(self, other: object) -> Paths:
        """Of as many rounds, beside these."""
        assert isinstance(other, Paths)
        return Paths(*(np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)))


def extended(old: Paths, queue: RowQueue, walk: Walk, holds: Callable[[int], bool], *, alone: bool) -> Paths:
    """With the rows that get slots meanwhile, as far as neither a shard nor another K may be due.

    holds: whether the K is right for so many rows; alone: new rows want rounds of their own.
    """
    starts, rounds = _starts(old, queue, holds, alone=alone)
    if not starts:
        return old.until(rounds)
    rows, place, end = queue.next(len(starts))
    begin, each = np.array(starts), np.arange(len(starts))
    since = np.arange(rounds + 1)[:, None] - begin
    at = walk(place, end, rounds - starts[0])[np.maximum(since, 0), each]
    both = old.until(rounds) + Paths(rows, end, begin, at, (end - at[:-1]) * (since[:-1] >= 0))
    over = (at == end).any(axis=1)  # slots that become free once more
    return both.until(int(np.argmax(over))) if over[-1] else both


def _starts(old: Paths, queue: RowQueue, holds: Callable[[int], bool], *, alone: bool) -> tuple[list[int], int]:
    """→ the round in which each new row gets its slot; rounds until a shard comes or another K may be due."""
    starts: list[int] = []
    arrived, before = queue.waiting, (-1, 0)
    for i, going in enumerate(np.count_nonzero(old.left[1:], axis=1).tolist(), start=1):
        if (going, len(starts)) == before:  # as a round ago
            continue
        before = going, len(starts)
        running, waiting = going + len(starts), arrived - len(starts)
        new = queue.due(running, waiting)
        if queue.shard_due(running, waiting) or not running + new or not holds(running + new) or (new and alone):
            return starts, i
        starts += [i] * new
    return starts, len(old.left)
