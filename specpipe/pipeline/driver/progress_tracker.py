"""The score of a run as it goes: what is published, how fast it moves, how well speculation does."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from specpipe.core import AcceptanceCounts, ShardReport
from specpipe.pipeline.driver.fleet import Fleet
from specpipe.pipeline.driver.progress import Progress, Speed
from specpipe.pipeline.driver.tasks import TaskQueue
from specpipe.pipeline.messages import WorkerStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What previous starts have published: progress counts it, policies learn from it."""

    shards: int = 0
    rows: int = 0
    failed_rows: int = 0
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)


class ProgressTracker:
    """Sums reports, and makes snapshots of the whole run."""

    def __init__(self, earlier: Earlier, tasks: TaskQueue, fleet: Fleet) -> None:
        self.acceptance = earlier.acceptance
        """All that published shards have verified."""
        self._tasks, self._fleet = tasks, fleet
        self._published = earlier.shards
        self._done_rows, self._failed_rows = earlier.rows, earlier.failed_rows
        self._total_rows = tasks.rows + earlier.rows
        self._total_shards = len(tasks) + earlier.shards
        self._tokens, self._rows = Speed(), Speed()
        self._began = time.monotonic()
        self.retries = self.lost_workers = 0

    def publish(self, report: ShardReport, rows: int) -> None:
        """`rows`: those that were run for it."""
        self.acceptance += report.verified
        self._published += 1
        self._done_rows += rows
        self._failed_rows += report.failed_rows

    def snapshot(self, *, failed_shards: int, draining: bool) -> Progress:
        """The run as of now, from the latest statuses."""
        members = list(self._fleet.ready.values())
        statuses = [member.status for member in members if member.status is not None]
        partly = sum(max(0, member.status.rows_done - member.reported_rows) for member in members if member.status)
        done = min(self._total_rows, self._done_rows + partly)
        now = time.monotonic()
        self._rows.add(now, done)
        self._tokens.add(now, sum(status.output_tokens for status in statuses))
        pace = self._rows.per_second
        depths = [self._fleet.queue_depth(member, self._tasks.rows) for member in members]
        return Progress(
            elapsed_s=now - self._began,
            total_rows=self._total_rows,
            done_rows=done,
            failed_rows=self._failed_rows,
            total_shards=self._total_shards,
            published_shards=self._published,
            failed_shards=failed_shards,
            workers=len(members),
            starting=sum(member.placed for member in self._fleet.members.values()) - len(members),
            unplaced=sum(not member.placed for member in self._fleet.members.values()),
            running=sum(status.running for status in statuses),
            waiting=sum(status.waiting for status in statuses),
            k=sum(status.k for status in statuses) / max(1, len(statuses)),
            queue_depth=sum(depths) / max(1, len(depths)),
            acceptance_length=self._acceptance_length(statuses),
            tokens_per_s=self._tokens.per_second,
            eta_s=(self._total_rows - done) / pace if pace else None,
            draining=draining,
            retries=self.retries,
            lost_workers=self.lost_workers,
        )

    def _acceptance_length(self, statuses: list[WorkerStatus]) -> float:
        """Of all published shards; of the running ones while none is published."""
        if self.acceptance.drafts:
            return self.acceptance.acceptance_length
        drafts = sum(status.drafts for status in statuses)
        return 1.0 + (sum(status.accepted_tokens for status in statuses) / drafts if drafts else 0.0)
