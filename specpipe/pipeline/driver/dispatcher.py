"""Which worker gets which shard, when, and under which plan."""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from specpipe.core import MAX_SHARDS_IN_FLIGHT, QUEUED_ROWS_PER_SLOT, ShardReport, SpeculationPlan
from specpipe.pipeline.driver.fleet import Fleet, Member
from specpipe.pipeline.driver.tasks import Task, TaskQueue
from specpipe.pipeline.messages import ShardOrder
from specpipe.speculation.policy import Policy
from specpipe.speculation.run_estimates import RunEstimates

_WINDOW_S, _WINDOW_PLANS = 0.1, 20  # a plan of goodput takes half a millisecond of the driver


class Dispatched(NamedTuple):
    """A shard on its way."""

    member: Member
    task: Task
    report: Future[ShardReport]


class Dispatcher:
    """Keeps every worker supplied. Constant work per shard, however many workers there are."""

    def __init__(
        self,
        tasks: TaskQueue,
        fleet: Fleet,
        policy: Policy,
        learning: RunEstimates,
        *,
        slots: int,
        in_flight: int,
        backup_s: float,
    ) -> None:
        self._tasks, self._fleet, self._policy, self._learning = tasks, fleet, policy, learning
        self._slots, self._in_flight, self._backup_s = slots, in_flight, backup_s
        self._hungry: dict[str, Member] = {}
        self._holders: dict[int, list[Member]] = {}
        """Workers that got the same shard, for shards that have a backup."""
        self._finished, self._seconds = 0, 0.0
        self._recent: dict[tuple[str, int], SpeculationPlan] = {}
        """Plans of this window, by queue depth."""
        self._window, self._made = 0.0, 0
        self.contested: set[int] = set()
        """Shards that ever had a backup, or were a lost worker's: whose part is there, its footer says."""

    def plan(self, member: Member) -> SpeculationPlan:
        """The policy's for this moment; while hundreds a second are asked for, one for nearly the same queue depth."""
        depth, now = self._fleet.queue_depth(member, self._tasks.rows), time.monotonic()
        if now - self._window >= _WINDOW_S:
            self._window, self._made, self._recent = now, 0, {}
        near = self._learning.hardware(member.name), round(20 * math.log1p(depth))  # within 5 %
        if self._made < _WINDOW_PLANS or near not in self._recent:
            self._recent[near] = self._policy.plan(self._learning.policy_inputs(member.name, queue_depth=depth))
            self._made += 1
        return self._recent[near]

    def offer(self, member: Member) -> None:
        """The worker can take more."""
        if member.name in self._fleet.ready:
            self._hungry[member.name] = member

    def forget(self, member: Member) -> None:
        self._hungry.pop(member.name, None)

    def feed(self) -> Iterator[Dispatched]:
        """Give every hungry worker what it may take."""
        suspects = self._tasks.suspects
        for member in list(self._hungry.values()):
            if not self._tasks:
                return
            if suspects and member.tasks and not member.alone:
                suspects -= 1  # it gets nothing more until it is idle, then a suspect
                continue
            while len(member.tasks) < self._in_flight and not member.alone:
                task = self._tasks.take(worker=member.name, idle=not member.tasks, others=self._fleet.ready.keys())
                if task is None:
                    break
                yield self._hand_out(member, task)
            if len(member.tasks) >= self._in_flight or member.alone:
                self._hungry.pop(member.name, None)

    def _hand_out(self, member: Member, task: Task) -> Dispatched:
        self._fleet.hand_over(member, task)
        order = ShardOrder(
            shard=task.shard,
            plan=self.plan(member),
            attempt=task.attempt,
            priors=self._learning.priors(member.name),
            failed_only=task.failed_rows is not None,
        )
        return Dispatched(member, task, member.handle.run_shard(order))

    # small shards: so many as leave no slot empty

    def top_up(self) -> Iterator[Dispatched]:
        """Workers that have slots to spare get more shards than the usual, whoever has the fewest rows first, up to a
        fair share of the rows that are left: one that is still starting finds its own."""
        if not self._tasks or self._tasks.suspects:
            return
        placed = [member for member in self._fleet.members.values() if member.placed]
        open_rows = {member.name: member.open_rows for member in placed}
        share = (sum(open_rows.values()) + self._tasks.rows) / max(1, len(placed))
        enough = min(QUEUED_ROWS_PER_SLOT * self._slots, share)
        short = [(rows, name) for name, rows in open_rows.items() if name in self._fleet.ready and rows < enough]
        heapq.heapify(short)
        while short and self._tasks:
            rows, name = heapq.heappop(short)
            member = self._fleet.ready[name]
            if member.alone or len(member.tasks) >= MAX_SHARDS_IN_FLIGHT:
                continue
            task = self._tasks.take(worker=name, idle=not member.tasks, others=self._fleet.ready.keys())
            if task is None:
                continue
            yield self._hand_out(member, task)
            if rows + task.rows < enough:
                heapq.heappush(short, (rows + task.rows, name))

    # the last shards: an idle worker gets a copy of one that takes long (backup tasks, Dean and Ghemawat 2004)

    def back_up(self) -> Iterator[Dispatched]:
        """Once nothing is left to hand out: idle workers run the shards that have been running longest, as well."""
        idle = [] if self._tasks else [member for member in self._fleet.ready.values() if not member.tasks]
        if not idle:
            return
        patience = max(self._backup_s, self._seconds / max(1, self._finished))
        now = time.monotonic()
        slow = [
            (task.handed_at, task.shard.index, holder, task)
            for holder in self._fleet.ready.values()
            for task in holder.tasks.values()
            if now - task.handed_at > patience and self._may_be_copied(task)
        ]
        slow.sort(key=lambda late: late[:2])
        for member, (_, index, holder, task) in zip(idle, slow, strict=False):
            self._holders[index] = [holder, member]
            self.contested.add(index)
            yield self._hand_out(member, dataclasses.replace(task, attempt=task.attempt + 1, tried=set(task.tried)))

    def _may_be_copied(self, task: Task) -> bool:
        return not task.suspect and task.failed_rows is None and task.shard.index not in self._holders

    def finished(self, member: Member, task: Task) -> None:
        """A shard is published: whoever else runs it is free for another, and nobody hears of that attempt again."""
        self._finished += 1
        self._seconds += time.monotonic() - task.handed_at
        for holder in self._holders.pop(task.shard.index, ()):
            if holder is not member and (other := holder.tasks.get(task.shard.index)) is not None:
                self._fleet.take_back(holder, other, finished=False)
                self.offer(holder)

    def runs_elsewhere(self, task: Task) -> bool:
        """Whether another attempt at the shard is still running: then a failed one needs no retry."""
        return any(task.shard.index in holder.tasks for holder in self._holders.get(task.shard.index, ()))
