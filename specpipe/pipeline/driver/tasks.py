"""Queue of shards to dispatch: new ones in order; retries first, and alone on a worker after a worker died."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from specpipe.core import Shard


@dataclass(slots=True)
class Task:
    """A shard and the state of its attempts."""

    shard: Shard
    attempt: int = 1
    """Number of the current attempt, from 1."""
    tried: set[str] = field(default_factory=set)
    """Workers on which an attempt failed."""
    suspect: bool = False
    """The shard was in flight when a worker died. It runs alone, so that it cannot end other shards with it."""
    failed_rows: int | None = None
    """Number of published rows to run again, those with an error; None for all rows of the shard."""
    assigned_at: float = 0.0
    """Time of the current assignment (`time.monotonic`)."""

    @property
    def rows(self) -> int:
        """Number of rows that an attempt runs."""
        return self.shard.rows if self.failed_rows is None else self.failed_rows


class TaskQueue:
    """Shards that no worker holds. Constant work per shard; the few retries are searched."""

    def __init__(self, shards: Iterable[Shard], failed_rows: Mapping[int, int] | None = None) -> None:
        """`failed_rows`: for shards of which only the failed rows run again, the number of these rows by shard."""
        again = failed_rows or {}
        self._new = deque(Task(shard, failed_rows=again.get(shard.index)) for shard in shards)
        self._retries: list[Task] = []
        self.rows = sum(task.rows for task in self._new)
        """Rows of all queued shards."""

    def __len__(self) -> int:
        return len(self._new) + len(self._retries)

    @property
    def first(self) -> Shard | None:
        """The next new shard, which stays in the queue; None without one."""
        return self._new[0].shard if self._new else None

    @property
    def suspects(self) -> int:
        """Number of queued retries that must run alone."""
        return sum(task.suspect for task in self._retries)

    def retry(self, task: Task, *, worker: str, suspect: bool) -> None:
        """Queues another attempt after one failed on `worker`; another worker gets it if there is one."""
        task.attempt += 1
        task.tried.add(worker)
        task.suspect = task.suspect or suspect
        self._retries.append(task)
        self.rows += task.rows

    def take(self, *, worker: str, idle: bool, workers: Set[str]) -> Task | None:
        """Removes and returns the next task for `worker`; None without one.

        `idle`: the worker holds no shard, so that it may get a suspect. `workers`: all live workers.
        """
        for task in self._retries:
            another_first = worker in task.tried and not workers <= task.tried
            if not another_first and (idle or not task.suspect):
                self._retries.remove(task)
                self.rows -= task.rows
                return task
        if not self._new:
            return None
        task = self._new.popleft()
        self.rows -= task.rows
        return task
