"""Queue of shards to dispatch: new ones in order; retries first, and alone on a worker after a worker died.

Shards whose prompts begin alike (`Shard.continues`) go to one worker, which computes the common beginning once. Other
workers get some of them only when nothing else is left.
"""

from __future__ import annotations

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
    """Time of the current assignment (`EventQueue.now`)."""

    @property
    def rows(self) -> int:
        """Number of rows that an attempt runs."""
        return self.shard.rows if self.failed_rows is None else self.failed_rows


class TaskQueue:
    """Shards that no worker holds. Constant work per shard; the few retries are searched."""

    def __init__(self, shards: Iterable[Shard], failed_rows: Mapping[int, int] | None = None) -> None:
        """`failed_rows`: for shards of which only the failed rows run again, the number of these rows by shard."""
        self._failed_rows = failed_rows or {}
        self._shards = list(shards)  # a Task for each takes 300 bytes
        self._groups_end = 0
        """Position behind the groups that workers have begun."""
        self._begun: dict[str, range] = {}
        """Positions that are left of the group that each worker has begun."""
        self._retries: list[Task] = []
        self._new = len(self._shards)
        self.rows = sum(self._first_task(shard).rows for shard in self._shards)
        """Rows of all queued shards."""

    def __len__(self) -> int:
        return self._new + len(self._retries)

    @property
    def first(self) -> Shard | None:
        """The first new shard, which stays in the queue; None without one."""
        begun = (group[0] for group in self._begun.values() if group)
        position = self._groups_end if self._groups_end < len(self._shards) else next(begun, None)
        return None if position is None else self._shards[position]

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
        owner = self._owner(worker)
        position, self._begun[owner] = self._begun[owner][0], self._begun[owner][1:]
        task = self._first_task(self._shards[position])
        self._new -= 1
        self.rows -= task.rows
        return task

    def _owner(self, worker: str) -> str:
        """Returns the worker of whose group `worker` takes its next new shard: itself, or the one with most left."""
        if not self._begun.get(worker) and self._groups_end < len(self._shards):
            self._begun[worker] = self._begin_group()
        return worker if self._begun.get(worker) else max(self._begun, key=lambda name: len(self._begun[name]))

    def _begin_group(self) -> range:
        """Returns the positions of the next group: consecutive shards whose prompts begin alike."""
        start, count = self._groups_end, len(self._shards)
        self._groups_end = next((end for end in range(start + 1, count) if not self._continues(end)), count)
        return range(start, self._groups_end)

    def _continues(self, position: int) -> bool:
        """Returns whether a shard belongs to the group of the one before."""
        shard, before = self._shards[position], self._shards[position - 1]
        return shard.continues and before.index == shard.index - 1

    def _first_task(self, shard: Shard) -> Task:
        """Returns the task for the first attempt at a shard."""
        return Task(shard, failed_rows=self._failed_rows.get(shard.index))
