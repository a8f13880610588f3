"""Dispatch of shards: which worker gets which shard, when, and under which plan."""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from specpipe.core import MAX_SHARDS_IN_FLIGHT, QUEUED_ROWS_PER_SLOT, ShardReport, SpeculationPlan
from specpipe.pipeline.driver.config import DriverConfig
from specpipe.pipeline.driver.fleet import Fleet, Member
from specpipe.pipeline.driver.tasks import Task, TaskQueue
from specpipe.pipeline.messages import ShardOrder
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.policy import Policy

# A goodput plan takes the driver half a millisecond: of each window only the first plans are computed, later orders
# of about the same queue depth share them.
_WINDOW_S, _WINDOW_PLANS = 0.1, 20


class Dispatched(NamedTuple):
    """A shard that was sent to a worker."""

    member: Member
    task: Task
    report: Future[ShardReport]


class Dispatcher:
    """Keeps every worker supplied with shards. Constant work per shard, whatever the number of workers."""

    def __init__(
        self,
        tasks: TaskQueue,
        fleet: Fleet,
        policy: Policy,
        estimates: RunEstimates,
        config: DriverConfig,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """now: the driver's clock (`EventQueue.now`)."""
        self._tasks, self._fleet, self._policy, self._estimates = tasks, fleet, policy, estimates
        self._config, self._now = config, now
        self._available: dict[str, Member] = {}
        """Workers that may take another shard, by name."""
        self._holders: dict[int, list[Member]] = {}
        """For shards with a backup copy: the workers that run them."""
        self._finished, self._seconds = 0, 0.0
        """Number of published shards, and the sum of their durations."""
        self._plans: dict[tuple[str, int], SpeculationPlan] = {}
        """Plans of the current window, by hardware and logarithm of the queue depth."""
        self._window_began, self._window_plans = 0.0, 0
        self.maybe_published: set[int] = set()
        """Shards that ever had a backup copy or were held by a lost worker; see DriverResult."""

    def plan(self, member: Member) -> SpeculationPlan:
        """Returns the policy's plan for a worker, or a recent one for a queue depth within 5 %."""
        depth, now = self._fleet.queue_depth(member, self._tasks.rows), self._now()
        if now - self._window_began >= _WINDOW_S:
            self._window_began, self._window_plans, self._plans = now, 0, {}
        key = self._estimates.hardware(member.name), round(20 * math.log1p(depth))
        if self._window_plans < _WINDOW_PLANS or key not in self._plans:
            self._plans[key] = self._policy.plan(self._estimates.policy_inputs(member.name, queue_depth=depth))
            self._window_plans += 1
        return self._plans[key]

    def mark_available(self, member: Member) -> None:
        """Records that a worker may take another shard."""
        if member.name in self._fleet.ready:
            self._available[member.name] = member

    def remove(self, member: Member) -> None:
        """Sends no more shards to a worker."""
        self._available.pop(member.name, None)

    def dispatch(self) -> Iterator[Dispatched]:
        """Sends shards to every available worker, up to `in_flight` each."""
        suspects = self._tasks.suspects
        for member in list(self._available.values()):
            if not self._tasks:
                return
            if suspects and member.tasks and not member.runs_suspect:
                suspects -= 1  # it gets nothing until it is idle, and then the suspect
                continue
            while len(member.tasks) < self._config.in_flight and not member.runs_suspect:
                task = self._tasks.take(worker=member.name, idle=not member.tasks, workers=self._fleet.ready.keys())
                if task is None:
                    break
                yield self._send(member, task)
            if len(member.tasks) >= self._config.in_flight or member.runs_suspect:
                self._available.pop(member.name, None)

    def _send(self, member: Member, task: Task) -> Dispatched:
        self._fleet.assign(member, task)
        order = ShardOrder(
            shard=task.shard,
            plan=self.plan(member),
            attempt=task.attempt,
            priors=self._estimates.policy_inputs(member.name),
            failed_only=task.failed_rows is not None,
            kv_scales=self._fleet.kv_scales,
        )
        return Dispatched(member, task, member.handle.run_shard(order))

    # small shards: more of them at once, so that no slot stays empty

    def top_up(self) -> Iterator[Dispatched]:
        """Sends more shards than `in_flight` to workers whose rows do not fill their slots, fewest rows first.

        A worker gets at most a fair share of the remaining rows, so that some are left for workers that still start.
        """
        if not self._tasks or self._tasks.suspects:
            return
        placed = [member for member in self._fleet.members.values() if member.placed]
        open_rows = {member.name: member.open_rows for member in placed}
        fair_share = (sum(open_rows.values()) + self._tasks.rows) / max(1, len(placed))
        enough = min(QUEUED_ROWS_PER_SLOT * self._config.settings.slots, fair_share)
        short = [(rows, name) for name, rows in open_rows.items() if name in self._fleet.ready and rows < enough]
        heapq.heapify(short)
        while short and self._tasks:
            rows, name = heapq.heappop(short)
            member = self._fleet.ready[name]
            if member.runs_suspect or len(member.tasks) >= MAX_SHARDS_IN_FLIGHT:
                continue
            task = self._tasks.take(worker=name, idle=not member.tasks, workers=self._fleet.ready.keys())
            if task is None:
                continue
            yield self._send(member, task)
            if rows + task.rows < enough:
                heapq.heappush(short, (rows + task.rows, name))

    # backup tasks (Dean and Ghemawat 2004): at the end an idle worker runs a copy of a slow shard

    def dispatch_backups(self) -> Iterator[Dispatched]:
        """Sends copies of the longest-running shards to idle workers, once no shard is queued."""
        idle = [] if self._tasks else [member for member in self._fleet.ready.values() if not member.tasks]
        if not idle:
            return
        limit_s = max(self._config.backup_s, self._seconds / max(1, self._finished))
        now = self._now()
        slow = [
            (task.assigned_at, task.shard.index, holder, task)
            for holder in self._fleet.ready.values()
            for task in holder.tasks.values()
            if now - task.assigned_at > limit_s and self._may_be_copied(task)
        ]
        slow.sort(key=lambda entry: entry[:2])
        for member, (_, index, holder, task) in zip(idle, slow, strict=False):
            self._holders[index] = [holder, member]
            self.maybe_published.add(index)
            yield self._send(member, dataclasses.replace(task, attempt=task.attempt + 1, tried=set(task.tried)))

    def _may_be_copied(self, task: Task) -> bool:
        return not task.suspect and task.failed_rows is None and task.shard.index not in self._holders

    def finished(self, member: Member, task: Task) -> None:
        """Records a published shard. Another worker that runs a copy becomes available; its report is ignored."""
        self._finished += 1
        self._seconds += self._now() - task.assigned_at
        for holder in self._holders.pop(task.shard.index, ()):
            if holder is not member and (other := holder.tasks.get(task.shard.index)) is not None:
                self._fleet.release(holder, other, finished=False)
                self.mark_available(holder)

    def runs_elsewhere(self, task: Task) -> bool:
        """True while another attempt at the shard is running, so that a failed one needs no retry."""
        return any(task.shard.index in holder.tasks for holder in self._holders.get(task.shard.index, ()))
