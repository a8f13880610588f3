"""When to give up: on a lane whose workers only die, or on a run in which nothing succeeds any more."""

from __future__ import annotations

from specpipe.errors import SpecpipeError
from specpipe.pipeline.failures import EngineError

_FRUITLESS = 3  # deaths of workers in one lane, none of which finished a shard


class RetryLimits:
    """Counts what goes wrong in a row; any finished shard makes up for all of it."""

    def __init__(self, workers: int) -> None:
        self._most_deaths = max(6, 2 * workers)
        self._most_failures = max(24, 6 * workers)
        self._deaths = self._failures = 0
        self._fruitless: dict[int, int] = {}

    def shard_finished(self) -> None:
        self._deaths = self._failures = 0

    def worker_died(self, lane: int, reason: str, *, fruitful: bool) -> None:
        """`fruitful`: it had finished a shard. Raises EngineError when workers only die."""
        self._fruitless[lane] = 0 if fruitful else self._fruitless.get(lane, 0) + 1
        self._deaths += 1
        if self._deaths >= self._most_deaths:
            raise EngineError(f"{self._deaths} workers died in a row without a finished shard; the last one: {reason}")

    def attempt_failed(self, reason: str) -> None:
        """Raises SpecpipeError when shards only fail."""
        self._failures += 1
        if self._failures >= self._most_failures:
            raise SpecpipeError(f"{self._failures} attempts at shards failed in a row; the last one: {reason}")

    def worth_replacing(self, lane: int) -> bool:
        """False for a lane, such as a machine with a broken GPU, whose workers never finish anything."""
        return self._fruitless.get(lane, 0) < _FRUITLESS
