"""Limits after which a run gives up: on a worker's place in the fleet, or on the whole run."""

from __future__ import annotations

from specpipe.errors import SpecpipeError
from specpipe.pipeline.failures import EngineError

_MAX_DEATHS_OF_INDEX = 3  # workers of one index that died in a row without a finished shard


class RetryLimits:
    """Counters of consecutive failures; every finished shard resets them."""

    def __init__(self, workers: int) -> None:
        self._max_deaths = max(6, 2 * workers)
        self._max_failures = max(24, 6 * workers)
        self._deaths = self._failures = 0
        self._deaths_of_index: dict[int, int] = {}
        """Consecutive workers of an index that died without a finished shard."""

    def shard_finished(self) -> None:
        """Resets the limits of the run."""
        self._deaths = self._failures = 0

    def worker_died(self, index: int, reason: str, *, finished_a_shard: bool) -> None:
        """Counts a dead worker. Raises EngineError after too many deaths in a row."""
        self._deaths_of_index[index] = 0 if finished_a_shard else self._deaths_of_index.get(index, 0) + 1
        self._deaths += 1
        if self._deaths >= self._max_deaths:
            raise EngineError(f"{self._deaths} workers died in a row without a finished shard; the last one: {reason}")

    def attempt_failed(self, reason: str) -> None:
        """Counts a failed attempt at a shard. Raises SpecpipeError after too many in a row."""
        self._failures += 1
        if self._failures >= self._max_failures:
            raise SpecpipeError(f"{self._failures} attempts at shards failed in a row; the last one: {reason}")

    def may_replace(self, index: int) -> bool:
        """False for an index, such as that of a machine with a broken GPU, whose workers never finish a shard."""
        return self._deaths_of_index.get(index, 0) < _MAX_DEATHS_OF_INDEX
