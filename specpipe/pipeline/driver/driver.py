"""The driver: supplies workers with shards, retries what failed and replaces workers that died."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from specpipe.core import KVScaleTable, Shard, ShardReport
from specpipe.errors import ModelError, SpecpipeError
from specpipe.pipeline.driver.config import DriverConfig, DriverResult, Observers
from specpipe.pipeline.driver.dispatcher import Dispatched, Dispatcher
from specpipe.pipeline.driver.event_queue import EventQueue
from specpipe.pipeline.driver.fleet import Fleet, Member
from specpipe.pipeline.driver.progress_tracker import EarlierProgress, ProgressTracker
from specpipe.pipeline.driver.retry_limits import RetryLimits
from specpipe.pipeline.driver.tasks import Task, TaskQueue
from specpipe.pipeline.failures import EngineError, StaleRunError
from specpipe.pipeline.logs import with_fields
from specpipe.pipeline.messages import Pool, ShardOrder, WorkerInfo, WorkerStatus
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.policy import Policy

log = logging.getLogger(__name__)
_FINAL_STATUS_S = 2.0  # wait for the final statuses of all workers
_UNPLACED_WARNING_S = 60.0  # between warnings that no worker has resources


class Driver:
    """Runs shards on the workers of a pool. `run` blocks; `drain` may be called from a signal handler."""

    def __init__(
        self,
        shards: Sequence[Shard],
        pool: Pool,
        policy: Policy,
        config: DriverConfig,
        *,
        failed_rows: Mapping[int, int] | None = None,
        earlier: EarlierProgress | None = None,
        observers: Observers | None = None,
        estimates: RunEstimates | None = None,
        kv_scales: KVScaleTable | None = None,
        events: EventQueue | None = None,
    ) -> None:
        """`shards`: those to run, in order. `failed_rows`: for shards of which only the failed rows run again, the
        number of these rows by shard. `earlier`: what was published before. `estimates`: acceptance and costs, updated
        from reports; new ones by default. `kv_scales`: those of the run's earlier starts. `events`: queue and clock;
        those of a run by default."""
        self._config = config
        self._observers = observers or Observers()
        self._estimates = estimates or RunEstimates(slots=config.settings.slots, proposers=())
        self._tasks = TaskQueue(shards, failed_rows)
        self._events = events or EventQueue()
        now = self._now = self._events.now
        self._fleet = Fleet(pool, now)
        self._fleet.add_kv_scales(kv_scales or {})
        self._progress = ProgressTracker(earlier or EarlierProgress(), self._tasks, self._fleet, now)
        self._dispatcher = Dispatcher(self._tasks, self._fleet, policy, self._estimates, config, now)
        self._draining = False
        self._limits = RetryLimits(config.workers)
        self._unplaced_since = self._now()
        self.result = DriverResult(workers=self._fleet.infos, maybe_published=self._dispatcher.maybe_published)

    def drain(self) -> None:
        """Dispatches nothing more; running shards finish and are published."""
        self._draining = True
        self._events.wake()

    def run(self) -> DriverResult:
        """Runs until every shard is published or has failed in every attempt.

        Raises SpecpipeError when continuing is pointless: for a job that cannot work, a newer start that owns the
        output folder, or workers or shards that fail one after the other.
        """
        try:
            for index in range(min(self._config.workers, len(self._tasks))):
                self._spawn(index)
            next_poll = 0.0
            while self._is_busy():
                self._events.run(until=next_poll)
                if self._now() >= next_poll:
                    self._poll()
                    next_poll = self._now() + self._config.poll_s
                if not self._draining:
                    self._await_reports(self._dispatcher.dispatch())
            self.result.interrupted = self._draining and bool(self._tasks)
            self._collect_final_statuses()
        finally:
            self._fleet.stop()
        return self.result

    def _is_busy(self) -> bool:
        return self._fleet.in_flight > 0 or (bool(self._tasks) and not self._draining)

    # workers

    def _spawn(self, index: int) -> None:
        member = self._fleet.spawn(index)
        warm_up = None
        if self._config.warm_up and (shard := self._tasks.first) is not None:
            warm_up = ShardOrder(shard=shard, plan=self._dispatcher.plan(member), attempt=1)
        self._events.on_done(member.handle.placed(), partial(self._placed, member))
        self._events.on_done(member.handle.start(warm_up), partial(self._started, member))

    def _placed(self, member: Member, future: Future[None]) -> None:
        member.placed = future.exception() is None  # `start` reports the same error

    def _started(self, member: Member, future: Future[WorkerInfo]) -> None:
        if member.name not in self._fleet.members:
            return  # it was removed meanwhile
        try:
            info: WorkerInfo = future.result()
        except EngineError as error:
            self._lost(member, str(error))
            return
        except SpecpipeError as error:
            self._start_failed(member, error)
            return
        self._fleet.add_ready(member, info)
        if self._fleet.add_kv_scales(info.kv_scales):
            self._observers.kv_scales(self._fleet.kv_scales)
        self._estimates.admit(member.name, info.hardware, info.profile)
        self._dispatcher.mark_available(member)

    def _start_failed(self, member: Member, error: SpecpipeError) -> None:
        """Removes a worker that reported why it cannot work. It is not replaced: its machine would fail again.

        Raises the error when no worker is left.
        """
        self._fleet.remove(member)
        if not self._fleet.members:
            raise error
        log.warning("%s cannot work: %s", member.name, error, extra=with_fields(worker=member.name))

    def _lost(self, member: Member, reason: str) -> None:
        """Replaces a worker that died and queues its shards again, each to run alone."""
        if member.name not in self._fleet.members:
            return  # second message about one death
        log.warning("%s is lost: %s", member.name, reason, extra=with_fields(worker=member.name))
        self._progress.lost_workers += 1
        self._dispatcher.remove(member)
        for task in self._fleet.remove(member):
            # A worker that does not answer may still be alive, and publish.
            self._dispatcher.maybe_published.add(task.shard.index)
            self._retry(task, member, reason, suspect=True)
        self._limits.worker_died(member.index, reason, finished_a_shard=member.reported_rows > 0)
        may_replace = self._limits.may_replace(member.index) or not self._fleet.members
        if self._tasks and not self._draining and may_replace:
            self._spawn(member.index)

    # shards

    def _await_reports(self, dispatched: Iterable[Dispatched]) -> None:
        for member, task, report in dispatched:
            self._events.on_done(report, partial(self._reported, member, task))

    def _reported(self, member: Member, task: Task, future: Future[ShardReport]) -> None:
        try:
            report = future.result()
        except (StaleRunError, ModelError):
            raise  # every other shard would fail in the same way
        except EngineError as error:
            self._lost(member, str(error))
            return
        except SpecpipeError as error:
            self._attempt_failed(member, task, str(error))
            return
        if not self._fleet.release(member, task, finished=True):
            return  # the shard was taken from this worker, or another has published it
        self._limits.shard_finished()
        self._dispatcher.mark_available(member)
        self._dispatcher.finished(member, task)
        self._progress.shard_published(report, task.rows)
        self._estimates.add(member.name, report.evidence)
        self._observers.published(report)

    def _attempt_failed(self, member: Member, task: Task, reason: str) -> None:
        if not self._fleet.release(member, task, finished=False):
            return
        self._dispatcher.mark_available(member)
        self._retry(task, member, reason, suspect=False)
        self._limits.attempt_failed(reason)

    def _retry(self, task: Task, member: Member, reason: str, *, suspect: bool) -> None:
        """Queues another attempt at a shard; after the last one the shard counts as failed."""
        fields = with_fields(shard=task.shard.index, attempt=task.attempt, worker=member.name)
        log.warning("shard %d, attempt %d on %s: %s", task.shard.index, task.attempt, member.name, reason, extra=fields)
        if self._dispatcher.runs_elsewhere(task):
            return
        if task.attempt < self._config.settings.max_attempts:
            self._tasks.retry(task, worker=member.name, suspect=suspect)
            self._progress.retries += 1
        else:
            self.result.failed[task.shard.index] = reason

    # statuses

    def _poll(self) -> None:
        """Replaces hung workers, requests statuses, sends additional shards and shows the progress."""
        for member, reason in self._fleet.stalled(self._config.settings.stall_seconds):
            self._lost(member, reason)
        self._request_statuses(final=False)
        if not self._draining:
            self._await_reports(self._dispatcher.top_up())
            self._await_reports(self._dispatcher.dispatch_backups())
        self._warn_if_unplaced()
        self._show_progress()

    def _warn_if_unplaced(self) -> None:
        now = self._now()
        if any(member.placed for member in self._fleet.members.values()):
            self._unplaced_since = now
        elif now - self._unplaced_since > _UNPLACED_WARNING_S:
            self._unplaced_since = now
            log.warning(
                "no worker has found room in the cluster for %.0f s; a worker needs a free GPU or CPUs "
                "(workers.count, workers.cpus_per_worker). The run continues as soon as there are some",
                _UNPLACED_WARNING_S,
            )

    def _request_statuses(self, *, final: bool) -> None:
        for member, future in self._fleet.request_statuses(final=final):
            self._events.on_done(future, partial(self._status_received, member))

    def _status_received(self, member: Member, future: Future[WorkerStatus]) -> None:
        member.status_requested_at = None
        if member.name not in self._fleet.members:
            return
        try:
            member.status = future.result()
        except SpecpipeError as error:
            self._lost(member, str(error))
            return
        self._estimates.add(member.name, member.status.evidence)
        for note in member.status.notes:
            log.warning("%s: %s", member.name, note, extra=with_fields(worker=member.name))
        if samples := member.status.samples:
            member.last_second = samples[-1].second
            self._observers.samples(samples)

    def _collect_final_statuses(self) -> None:
        """Requests the final status of every worker, with the end of its timeline, and waits a limited time."""
        limit = self._now() + _FINAL_STATUS_S
        self._request_statuses(final=True)
        members = self._fleet.ready.values()
        while any(member.status_requested_at is not None for member in members) and self._now() < limit:
            self._events.run(until=min(limit, self._now() + 0.1))
        self._show_progress()

    def _show_progress(self) -> None:
        progress = self._progress.snapshot(failed_shards=len(self.result.failed), draining=self._draining)
        self._observers.progress(progress)
