"""Rows of a simulated run that have no slot yet. Shards arrive, and their rows get slots in order."""

from __future__ import annotations

import numpy as np

from specpipe.core import admission_batch
from specpipe.simulator.draws import Ints
from specpipe.simulator.scenarios import Scenario


class RowQueue:
    """Queue of one worker. Methods take the running and waiting rows as arguments, so that a worker can look ahead."""

    def __init__(self, scenario: Scenario, stride: int) -> None:
        """stride: positions of a row."""
        self._scenario, self._stride = scenario, stride
        self._ends = np.searchsorted(scenario.shard, np.arange(int(scenario.shard[-1]) + 1), side="right").tolist()
        """For each shard, the first row after it."""
        self._taken = 0
        self.shards_in = 0
        """Shards that have arrived."""

    @property
    def waiting(self) -> int:
        """Waiting rows of shards that have arrived."""
        return (self._ends[self.shards_in - 1] if self.shards_in else 0) - self._taken

    @property
    def left(self) -> int:
        """Rows without a slot, those of later shards included."""
        return len(self._scenario.output) - self._taken

    def next(self, count: int) -> tuple[Ints, Ints, Ints]:
        """Returns the next rows, their positions and their end positions, each [count]."""
        rows = np.arange(self._taken, self._taken + count)
        start = rows * self._stride
        return rows, start, start + self._scenario.output[rows]

    def take(self, count: int) -> None:
        """Removes the next rows: they have slots now."""
        self._taken += count

    def arrive(self, running: int) -> None:
        """Takes in the shards that are due."""
        while self.shard_due(running, self.waiting):
            self.shards_in += 1

    def due(self, running: int, waiting: int) -> int:
        """Returns how many rows get slots now."""
        free = self._scenario.slots - running
        return min(free, waiting) if free >= min(waiting, admission_batch(self._scenario.slots)) else 0

    def shard_due(self, running: int, waiting: int) -> bool:
        """Returns True if the next shard arrives at this occupancy."""
        scenario = self._scenario
        if self.shards_in == len(self._ends):
            return False
        if scenario.refill >= 1:
            return waiting < scenario.slots
        return not waiting and running <= scenario.refill * scenario.slots
