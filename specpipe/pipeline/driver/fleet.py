"""The driver's book of workers: who lives, what each holds, what each said last."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from specpipe.pipeline.driver.tasks import Task
from specpipe.pipeline.messages import Pool, WorkerHandle, WorkerInfo, WorkerStatus

_POLLED_AT_ONCE = 100  # status messages in flight, however many workers there are


@dataclass(slots=True, eq=False)
class Member:
    """A worker, as the driver knows it."""

    handle: WorkerHandle
    lane: int
    """Place in the fleet; a replacement takes over its predecessor's."""
    placed: bool = False
    """It has a place to run in; one without waits for room in the cluster."""
    tasks: dict[int, Task] = field(default_factory=dict)
    """In flight, by shard number."""
    sent_rows: int = 0
    """Rows of all shards that were handed to it and did not fail."""
    reported_rows: int = 0
    status: WorkerStatus | None = None
    asked_at: float | None = None
    """When the status request in flight was sent."""
    second: int = 0
    """Latest timeline interval received."""

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def open_rows(self) -> int:
        """Rows running or waiting in this worker."""
        finished = max(self.reported_rows, self.status.rows_done if self.status else 0)
        return max(0, self.sent_rows - finished)

    @property
    def alone(self) -> bool:
        """It runs a suspect, which must have no company."""
        return any(task.suspect for task in self.tasks.values())


class Fleet:
    """All workers of a run. Replacements get new names, so that late messages of the dead are told apart."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._generations: dict[int, int] = {}
        self.members: dict[str, Member] = {}
        self.ready: dict[str, Member] = {}
        self.infos: dict[str, WorkerInfo] = {}
        """Of every worker that was ever ready."""
        self.in_flight = 0
        """Shards that workers hold."""

    def spawn(self, lane: int) -> Member:
        generation = self._generations[lane] = self._generations.get(lane, 0) + 1
        name = f"worker-{lane}" if generation == 1 else f"worker-{lane}.{generation}"
        member = Member(self._pool.spawn(name), lane)
        self.members[name] = member
        return member

    def admit(self, member: Member, info: WorkerInfo) -> None:
        """The worker is ready for shards."""
        member.placed = True
        self.ready[member.name] = member
        self.infos[member.name] = info

    def hand_over(self, member: Member, task: Task) -> None:
        """The worker now holds the task."""
        task.handed_at = time.monotonic()
        member.tasks[task.shard.index] = task
        member.sent_rows += task.rows
        self.in_flight += 1

    def take_back(self, member: Member, task: Task, *, finished: bool) -> bool:
        """The worker no longer holds the task; False when it had been given up before."""
        if member.tasks.pop(task.shard.index, None) is None:
            return False
        self.in_flight -= 1
        if finished:
            member.reported_rows += task.rows
        else:
            member.sent_rows -= task.rows
        return True

    def remove(self, member: Member) -> list[Task]:
        """Stop a worker and forget it; returns what it held."""
        self.members.pop(member.name, None)
        self.ready.pop(member.name, None)
        self.in_flight -= len(member.tasks)
        tasks, member.tasks = list(member.tasks.values()), {}
        member.handle.stop()
        return tasks

    def stop(self) -> None:
        for member in list(self.members.values()):
            self.remove(member)

    def queue_depth(self, member: Member, undispatched_rows: int) -> float:
        """Rows running and waiting in this worker, and its share of the rows that no worker has yet."""
        return member.open_rows + undispatched_rows / max(1, len(self.ready))

    def poll(self, *, final: bool = False) -> list[tuple[Member, Future[WorkerStatus]]]:
        """Ask for the status of those that were asked longest ago; `final`: of all, with unfinished intervals."""
        members = list(self.ready.values())
        silent = members if final else [member for member in members if member.asked_at is None]
        asked = len(members) - len(silent)
        out = []
        for member in silent[: len(silent) if final else max(0, _POLLED_AT_ONCE - asked)]:
            member.asked_at = time.monotonic()
            self.ready[member.name] = self.ready.pop(member.name)  # to the end of the line
            out.append((member, member.handle.status(member.second, final)))
        return out

    def stalled(self, limit_s: float) -> list[tuple[Member, str]]:
        """Workers whose engine step, or whose answer, has taken longer than `limit_s`."""
        now = time.monotonic()
        out: list[tuple[Member, str]] = []
        for member in self.ready.values():
            if member.asked_at is not None and now - member.asked_at > limit_s:
                out.append((member, self._silent(member, now - member.asked_at)))
            elif member.status is not None and member.status.in_step_s > limit_s:
                out.append((member, f"one engine step has taken {member.status.in_step_s:.0f} s"))
        return out

    def _silent(self, member: Member, seconds: float) -> str:
        facts = self.infos[member.name].facts
        return (
            f"no answer for {seconds:.0f} s; its stacks are in the log of process {facts.get('pid')} on "
            f"{facts.get('host')}"
        )
