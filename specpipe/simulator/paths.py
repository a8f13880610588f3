"""Positions of a simulated worker's rows, round by round, while rows end and others take their slots.

Shapes: m rounds with the same K, w rows that run in some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specpipe.simulator.draws import Ints
from specpipe.simulator.row_queue import RowQueue

Walk = Callable[[Ints, Ints, int], Ints]
"""`Draws.walk` with a fixed proposer and K."""


class Paths(NamedTuple):
    """Positions of rows over consecutive rounds, the oldest row first."""

    rows: Ints
    """[w] row numbers."""
    end: Ints
    """[w] end position of each row."""
    begin: Ints
    """[w] round in which each row gets its slot, ascending."""
    at: Ints
    """[m + 1, w] position before each round and after the last; its first one before it has a slot."""
    left: Ints
    """[m, w] tokens that a row still generates; 0 while it has no slot."""

    def until(self, rounds: int) -> Paths:
        """Returns the first rounds."""
        if rounds == len(self.left):
            return self
        w = int(np.searchsorted(self.begin, rounds))
        return Paths(self.rows[:w], self.end[:w], self.begin[:w], self.at[: rounds + 1, :w], self.left[:rounds, :w])

    def __add__(self, other: object) -> Paths:
        """Returns these rows beside those of `other`, which has as many rounds."""
        assert isinstance(other, Paths)
        return Paths(*(np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)))


def extended(
    old: Paths, queue: RowQueue, walk: Walk, same_k: Callable[[int], bool], *, stop_at_new_rows: bool
) -> Paths:
    """Returns the paths with the rows that get slots meanwhile, up to the next shard or change of K.

    same_k: returns True if K stays the same at an occupancy; stop_at_new_rows: rounds end when new rows get slots.
    """
    starts, rounds = _starts(old, queue, same_k, stop_at_new_rows=stop_at_new_rows)
    if not starts:
        return old.until(rounds)
    rows, place, end = queue.next(len(starts))
    begin, each = np.array(starts), np.arange(len(starts))
    since = np.arange(rounds + 1)[:, None] - begin
    at = walk(place, end, rounds - starts[0])[np.maximum(since, 0), each]
    both = old.until(rounds) + Paths(rows, end, begin, at, (end - at[:-1]) * (since[:-1] >= 0))
    over = (at == end).any(axis=1)  # slots that become free again
    return both.until(int(np.argmax(over))) if over[-1] else both


def _starts(
    old: Paths, queue: RowQueue, same_k: Callable[[int], bool], *, stop_at_new_rows: bool
) -> tuple[list[int], int]:
    """Returns the round in which each new row gets its slot, and the rounds until a shard or another K is due."""
    starts: list[int] = []
    arrived, before = queue.waiting, (-1, 0)
    for i, going in enumerate(np.count_nonzero(old.left[1:], axis=1).tolist(), start=1):
        if (going, len(starts)) == before:  # unchanged since the round before
            continue
        before = going, len(starts)
        running, waiting = going + len(starts), arrived - len(starts)
        new = queue.due(running, waiting)
        if (
            queue.shard_due(running, waiting)
            or not running + new
            or not same_k(running + new)
            or (new and stop_at_new_rows)
        ):
            return starts, i
        starts += [i] * new
    return starts, len(old.left)
