"""Queue of shards to dispatch: new ones in order; retries first, and alone on a worker after a worker died.

Shards whose prompts begin alike (`Shard.continues`) go to one worker, which computes the common beginning once. Other
workers get some of them only when nothing else is left.
"""

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
        self._groups: deque[deque[Task]] = deque()
        """New shards that no worker has begun; those whose prompts begin alike together, in order."""
        self._begun: dict[str, deque[Task]] = {}
        """The rest of the group that each worker has begun."""
        self._retries: list[Task] = []
        self._new = 0
        self.rows = 0
        """Rows of all queued shards."""
        before: int | None = None
        for shard in shards:
            task = Task(shard, failed_rows=again.get(shard.index))
            if shard.continues and before == shard.index - 1:
                self._groups[-1].append(task)
            else:
                self._groups.append(deque([task]))
            before = shard.index
            self._new += 1
            self.rows += task.rows

    def __len__(self) -> int:
        return self._new + len(self._retries)

    @property
    def first(self) -> Shard | None:
        """The first new shard, which stays in the queue; None without one."""
        group = self._groups[0] if self._groups else next((group for group in self._begun.values() if group), None)
        return group[0].shard if group else None

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
        task = self._group_of(worker).popleft()
        self._new -= 1
        self.rows -= task.rows
        return task

    def _group_of(self, worker: str) -> deque[Task]:
        """Returns the group from which a worker takes its next new shard: its own, a new one, or the longest."""
        group = self._begun.get(worker)
        if not group and self._groups:
            group = self._begun[worker] = self._groups.popleft()
        return group or max(self._begun.values(), key=len)
