"""The driver: keeps workers alive and supplied, retries what failed, and never touches a token."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from specpipe.core import Shard, ShardReport
from specpipe.errors import ModelError, SpecpipeError
from specpipe.pipeline.driver.config import DriverConfig, DriverResult, Observers
from specpipe.pipeline.driver.dispatcher import Dispatched, Dispatcher
from specpipe.pipeline.driver.event_queue import EventQueue
from specpipe.pipeline.driver.fleet import Fleet, Member
from specpipe.pipeline.driver.progress_tracker import Earlier, ProgressTracker
from specpipe.pipeline.driver.retry_limits import RetryLimits
from specpipe.pipeline.driver.tasks import Task, TaskQueue
from specpipe.pipeline.failures import EngineError, StaleRunError
from specpipe.pipeline.logs import with_fields
from specpipe.pipeline.messages import Pool, ShardOrder, WorkerInfo, WorkerStatus
from specpipe.speculation.policy import Policy
from specpipe.speculation.run_estimates import RunEstimates

log = logging.getLogger(__name__)
_LAST_WORDS_S = 2.0
_ROOM_S = 60.0  # without any worker for so long, the log says what the run waits for


class Driver:
    """One start of a run. `run` blocks; `drain` may be called from a signal handler."""

    def __init__(
        self,
        shards: Sequence[Shard],
        pool: Pool,
        policy: Policy,
        config: DriverConfig,
        *,
        failed_rows: Mapping[int, int] | None = None,
        earlier: Earlier | None = None,
        observers: Observers | None = None,
        learning: RunEstimates | None = None,
    ) -> None:
        """`failed_rows`: shards of which only so many rows, those with an error, are to be run again. `learning`: what
        the policy knows, and learns; without one it learns nothing of acceptance."""
        self._learning = learning or RunEstimates(slots=config.slots, proposers=())
        self._observers = observers or Observers()
        self._config = config
        self._tasks = TaskQueue(shards, failed_rows)
        self._fleet = Fleet(pool)
        self._progress = ProgressTracker(earlier or Earlier(), self._tasks, self._fleet)
        self._dispatcher = Dispatcher(
            self._tasks,
            self._fleet,
            policy,
            self._learning,
            slots=config.slots,
            in_flight=config.in_flight,
            backup_s=config.backup_s,
        )
        self._events = EventQueue()
        self._draining = False
        self._limits = RetryLimits(config.workers)
        self._alone_since = time.monotonic()
        self.outcome = DriverResult(workers=self._fleet.infos, contested=self._dispatcher.contested)

    def drain(self) -> None:
        """Hand out nothing more; let the running shards finish and publish."""
        self._draining = True
        self._events.wake()

    def run(self) -> DriverResult:
        """Work until every shard is published or has failed for good.

        Raises SpecpipeError for what makes going on pointless: a job that cannot work, a newer start that owns the
        output folder, workers or shards that fail one after the other.
        """
        try:
            for lane in range(min(self._config.workers, len(self._tasks))):
                self._spawn(lane)
            next_poll = 0.0
            while self._busy():
                self._events.handle(until=next_poll)
                if time.monotonic() >= next_poll:
                    self._poll()
                    next_poll = time.monotonic() + self._config.poll_s
                if not self._draining:
                    self._send(self._dispatcher.feed())
            self.outcome.interrupted = self._draining and bool(self._tasks)
            self._hear_last_words()
        finally:
            self._fleet.stop()
        return self.outcome

    def _busy(self) -> bool:
        return self._fleet.in_flight > 0 or (bool(self._tasks) and not self._draining)

    # workers come and go

    def _spawn(self, lane: int) -> None:
        member = self._fleet.spawn(lane)
        warm_up = None
        if self._config.warm_up and (shard := self._tasks.first) is not None:
            warm_up = ShardOrder(shard=shard, plan=self._dispatcher.plan(member), attempt=1)
        self._events.when_done(member.handle.placed(), partial(self._placed, member))
        self._events.when_done(member.handle.start(warm_up), partial(self._started, member))

    def _placed(self, member: Member, future: Future[None]) -> None:
        member.placed = future.exception() is None  # what went wrong, `start` says too

    def _started(self, member: Member, future: Future[WorkerInfo]) -> None:
        if member.name not in self._fleet.members:
            return  # given up meanwhile
        try:
            info: WorkerInfo = future.result()
        except EngineError as error:
            self._lost(member, str(error))
            return
        except SpecpipeError as error:
            self._refused(member, error)
            return
        self._fleet.admit(member, info)
        self._learning.admit(member.name, info.hardware, info.profile)
        self._dispatcher.offer(member)

    def _refused(self, member: Member, error: SpecpipeError) -> None:
        """A worker that says why it cannot work is not replaced: one bad machine must not end the run, nor stay in it.

        Raises the error when no worker is left.
        """
        self._fleet.remove(member)
        if not self._fleet.members:
            raise error
        log.warning("%s cannot work: %s", member.name, error, extra=with_fields(worker=member.name))

    def _lost(self, member: Member, reason: str) -> None:
        """Replace a worker and queue its shards again, each to run alone."""
        if member.name not in self._fleet.members:
            return  # two messages about one death
        log.warning("%s is lost: %s", member.name, reason, extra=with_fields(worker=member.name))
        self._progress.lost_workers += 1
        self._dispatcher.forget(member)
        for task in self._fleet.remove(member):
            self._dispatcher.contested.add(task.shard.index)  # what is lost to us may live, and publish
            self._retry(task, member, reason, suspect=True)
        self._limits.worker_died(member.lane, reason, fruitful=member.reported_rows > 0)
        wanted = self._limits.worth_replacing(member.lane) or not self._fleet.members
        if self._tasks and not self._draining and wanted:
            self._spawn(member.lane)

    # shards go out and come back

    def _send(self, dispatched: Iterable[Dispatched]) -> None:
        for member, task, report in dispatched:
            self._events.when_done(report, partial(self._finished, member, task))

    def _finished(self, member: Member, task: Task, future: Future[ShardReport]) -> None:
        try:
            report = future.result()
        except (StaleRunError, ModelError):
            raise  # every other shard would meet the same
        except EngineError as error:
            self._lost(member, str(error))
            return
        except SpecpipeError as error:
            self._failed(member, task, str(error))
            return
        if not self._fleet.take_back(member, task, finished=True):
            return  # the worker was given up meanwhile and the shard handed to another, or another was first
        self._limits.shard_finished()
        self._dispatcher.offer(member)
        self._dispatcher.finished(member, task)
        self._progress.publish(report, task.rows)
        self._learning.see(member.name, report.evidence)
        self._observers.published(report)

    def _failed(self, member: Member, task: Task, reason: str) -> None:
        if not self._fleet.take_back(member, task, finished=False):
            return
        self._dispatcher.offer(member)
        self._retry(task, member, reason, suspect=False)
        self._limits.attempt_failed(reason)

    def _retry(self, task: Task, member: Member, reason: str, *, suspect: bool) -> None:
        fields = with_fields(shard=task.shard.index, attempt=task.attempt, worker=member.name)
        log.warning("shard %d, attempt %d on %s: %s", task.shard.index, task.attempt, member.name, reason, extra=fields)
        if self._dispatcher.runs_elsewhere(task):
            return
        if task.attempt < self._config.max_attempts:
            self._tasks.retry(task, worker=member.name, suspect=suspect)
            self._progress.retries += 1
        else:
            self.outcome.failed[task.shard.index] = reason

    # what is going on

    def _poll(self) -> None:
        for member, why in self._fleet.stalled(self._config.stall_s):
            self._lost(member, why)
        self._ask(final=False)
        if not self._draining:
            self._send(self._dispatcher.top_up())
            self._send(self._dispatcher.back_up())
        self._say_what_it_waits_for()
        self._show()

    def _say_what_it_waits_for(self) -> None:
        now = time.monotonic()
        if any(member.placed for member in self._fleet.members.values()):
            self._alone_since = now
        elif now - self._alone_since > _ROOM_S:
            self._alone_since = now
            log.warning(
                "no worker has found room in the cluster for %.0f s; it needs a free GPU or CPUs (workers.count, "
                "workers.cpus_per_worker), and the run goes on as soon as there are some",
                _ROOM_S,
            )

    def _ask(self, *, final: bool) -> None:
        for member, future in self._fleet.poll(final=final):
            self._events.when_done(future, partial(self._heard, member))

    def _hear_last_words(self) -> None:
        """The end of every worker's timeline; those that say nothing in time are not waited for."""
        limit = time.monotonic() + _LAST_WORDS_S
        self._ask(final=True)
        while any(member.asked_at is not None for member in self._fleet.ready.values()) and time.monotonic() < limit:
            self._events.handle(until=min(limit, time.monotonic() + 0.1))
        self._show()

    def _show(self) -> None:
        progress = self._progress.snapshot(failed_shards=len(self.outcome.failed), draining=self._draining)
        self._observers.progress(progress)

    def _heard(self, member: Member, future: Future[WorkerStatus]) -> None:
        member.asked_at = None
        if member.name not in self._fleet.members:
            return
        try:
            member.status = future.result()
        except SpecpipeError as error:
            self._lost(member, str(error))
            return
        self._learning.see(member.name, member.status.evidence)
        for note in member.status.notes:
            log.warning("%s: %s", member.name, note, extra=with_fields(worker=member.name))
        if samples := member.status.samples:
            member.second = samples[-1].second
            self._observers.samples(samples)
