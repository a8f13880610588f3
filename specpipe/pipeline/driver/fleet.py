"""The workers of a run: which ones are alive, the shards that each holds, and its latest status."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from specpipe.core import KVScaleTable
from specpipe.pipeline.driver.tasks import Task
from specpipe.pipeline.messages import Pool, WorkerHandle, WorkerInfo, WorkerStatus

_MAX_STATUS_REQUESTS = 100  # in flight, whatever the number of workers


@dataclass(slots=True, eq=False)
class Member:
    """The driver's record of one worker."""

    handle: WorkerHandle
    index: int
    """Position in the fleet; a replacement takes over its predecessor's."""
    placed: bool = False
    """The cluster has given it resources."""
    tasks: dict[int, Task] = field(default_factory=dict)
    """Shards in flight, by number."""
    assigned_rows: int = 0
    """Rows of all shards that were assigned to it and did not fail."""
    reported_rows: int = 0
    """Rows of all shards that it has published."""
    status: WorkerStatus | None = None
    """Latest status."""
    status_requested_at: float | None = None
    """Time of the status request in flight (`EventQueue.now`)."""
    last_second: int = 0
    """Unix second of the latest timeline interval received."""

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self.handle.name

    @property
    def open_rows(self) -> int:
        """Rows running or waiting in this worker."""
        finished = max(self.reported_rows, self.status.rows_done if self.status else 0)
        return max(0, self.assigned_rows - finished)

    @property
    def runs_suspect(self) -> bool:
        """True while it runs a suspect shard, beside which no other may run."""
        return any(task.suspect for task in self.tasks.values())


class Fleet:
    """All workers of a run. A replacement gets a new name, so that late messages of its predecessor are recognised."""

    def __init__(self, pool: Pool, now: Callable[[], float] = time.monotonic) -> None:
        """now: the driver's clock (`EventQueue.now`)."""
        self._pool, self._now = pool, now
        self._spawned: dict[int, int] = {}
        """Number of workers spawned so far, by index."""
        self.members: dict[str, Member] = {}
        """Live workers by name: ready, starting, or waiting for resources."""
        self.ready: dict[str, Member] = {}
        """Members that accept shards, in the order in which their status was last requested."""
        self.infos: dict[str, WorkerInfo] = {}
        """Every worker that was ever ready, by name."""
        self.kv_scales: KVScaleTable = {}
        """The run's scales of KV pages in 8 bits. The first worker that has scales of a model decides."""
        self.in_flight = 0
        """Number of shards that workers hold."""

    def spawn(self, index: int) -> Member:
        """Requests a worker for a position in the fleet."""
        count = self._spawned[index] = self._spawned.get(index, 0) + 1
        name = f"worker-{index}" if count == 1 else f"worker-{index}.{count}"
        member = Member(self._pool.spawn(name), index)
        self.members[name] = member
        return member

    def add_kv_scales(self, scales: KVScaleTable) -> bool:
        """Adds scales of models that have none yet; returns True if there are any."""
        known, self.kv_scales = self.kv_scales, {**scales, **self.kv_scales}
        return len(self.kv_scales) > len(known)

    def add_ready(self, member: Member, info: WorkerInfo) -> None:
        """Marks a worker as ready for shards."""
        member.placed = True
        self.ready[member.name] = member
        self.infos[member.name] = info

    def assign(self, member: Member, task: Task) -> None:
        """Records that the worker holds the task."""
        task.assigned_at = self._now()
        member.tasks[task.shard.index] = task
        member.assigned_rows += task.rows
        self.in_flight += 1

    def release(self, member: Member, task: Task, *, finished: bool) -> bool:
        """Records that the worker no longer holds the task. Returns False if it was taken from the worker before."""
        if member.tasks.pop(task.shard.index, None) is None:
            return False
        self.in_flight -= 1
        if finished:
            member.reported_rows += task.rows
        else:
            member.assigned_rows -= task.rows
        return True

    def remove(self, member: Member) -> list[Task]:
        """Stops a worker and returns the tasks that it held."""
        self.members.pop(member.name, None)
        self.ready.pop(member.name, None)
        self.in_flight -= len(member.tasks)
        tasks, member.tasks = list(member.tasks.values()), {}
        member.handle.stop()
        return tasks

    def stop(self) -> None:
        """Stops all workers."""
        for member in list(self.members.values()):
            self.remove(member)

    def queue_depth(self, member: Member, queued_rows: int) -> float:
        """Returns the rows running and waiting in this worker, plus its share of the rows that no worker holds."""
        return member.open_rows + queued_rows / max(1, len(self.ready))

    def request_statuses(self, *, final: bool = False) -> list[tuple[Member, Future[WorkerStatus]]]:
        """Requests the status of the workers whose last request is oldest, up to the limit in flight.

        `final`: from all workers, with unfinished timeline intervals.
        """
        members = list(self.ready.values())
        candidates = members if final else [member for member in members if member.status_requested_at is None]
        in_flight = len(members) - len(candidates)
        requests = []
        for member in candidates[: len(candidates) if final else max(0, _MAX_STATUS_REQUESTS - in_flight)]:
            member.status_requested_at = self._now()
            self.ready[member.name] = self.ready.pop(member.name)  # to the end
            requests.append((member, member.handle.status(member.last_second, final)))
        return requests

    def stalled(self, limit_s: float) -> list[tuple[Member, str]]:
        """Returns the workers whose engine step or answer has taken longer than `limit_s` seconds, with the reason."""
        now = self._now()
        found: list[tuple[Member, str]] = []
        for member in self.ready.values():
            if member.status_requested_at is not None and now - member.status_requested_at > limit_s:
                found.append((member, self._no_answer(member, now - member.status_requested_at)))
            elif member.status is not None and member.status.in_step_s > limit_s:
                found.append((member, f"one engine step has taken {member.status.in_step_s:.0f} s"))
        return found

    def _no_answer(self, member: Member, seconds: float) -> str:
        facts = self.infos[member.name].facts
        return (
            f"no answer for {seconds:.0f} s; its stacks are in the log of process {facts.get('pid')} on "
            f"{facts.get('host')}"
        )
