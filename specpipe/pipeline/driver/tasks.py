"""Shards that are still to be handed out: fresh ones in order, failed ones first and, after a crash, alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from specpipe.core import Shard


@dataclass(slots=True)
class Task:
    """A shard and what became of its attempts."""

    shard: Shard
    attempt: int = 1
    tried: set[str] = field(default_factory=set)
    """Workers on which an attempt failed."""
    suspect: bool = False
    """It was in flight when a worker died: it runs alone, so that it cannot take another shard down with it."""
    failed_rows: int | None = None
    """Only so many rows of it, those with an error, are to be run again; None: all."""
    handed_at: float = 0.0
    """When a worker got it (time.monotonic)."""

    @property
    def rows(self) -> int:
        """Rows that an attempt runs."""
        return self.shard.rows if self.failed_rows is None else self.failed_rows


class TaskQueue:
    """Hands out tasks. Constant work per shard; retries, which are few, are searched."""

    def __init__(self, shards: Iterable[Shard], failed_rows: Mapping[int, int] | None = None) -> None:
        """`failed_rows`: by shard number, how many rows alone are to be run again; the other shards run whole."""
        again = failed_rows or {}
        self._fresh = deque(Task(shard, failed_rows=again.get(shard.index)) for shard in shards)
        self._retries: list[Task] = []
        self.rows = sum(task.rows for task in self._fresh)
        """Rows not yet handed out."""

    def __len__(self) -> int:
        return len(self._fresh) + len(self._retries)

    @property
    def first(self) -> Shard | None:
        """The next fresh shard, which stays where it is."""
        return self._fresh[0].shard if self._fresh else None

    @property
    def suspects(self) -> int:
        return sum(task.suspect for task in self._retries)

    def retry(self, task: Task, *, worker: str, suspect: bool) -> None:
        """Queue another attempt, on another worker if there is one."""
        task.attempt += 1
        task.tried.add(worker)
        task.suspect = task.suspect or suspect
        self._retries.append(task)
        self.rows += task.rows

    def take(self, *, worker: str, idle: bool, others: Set[str]) -> Task | None:
        """The next task for this worker, or None. `others`: the live workers, this one included."""
        for task in self._retries:
            elsewhere = worker in task.tried and not others <= task.tried
            if not elsewhere and (idle or not task.suspect):
                self._retries.remove(task)
                self.rows -= task.rows
                return task
        if not self._fresh:
            return None
        task = self._fresh.popleft()
        self.rows -= task.rows
        return task
