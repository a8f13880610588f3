"""Progress of a run: sums of the shard reports, and snapshots with the latest statuses of the workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from specpipe.core import AcceptanceCounts, ShardReport
from specpipe.pipeline.driver.fleet import Fleet
from specpipe.pipeline.driver.progress import Progress, Speed
from specpipe.pipeline.driver.tasks import TaskQueue
from specpipe.pipeline.messages import WorkerStatus
from specpipe.telemetry.shard_table import acceptance, total

_ETA_WINDOW_S = 120.0
_ETA_ROWS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierProgress:
    """Shards and rows that earlier starts have published, without those that run again."""

    shards: int = 0
    rows: int = 0
    failed_rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """Generated and scored tokens."""
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)

    @classmethod
    def from_shards(cls, shards: pa.Table, rerun: Mapping[int, int]) -> EarlierProgress:
        """`shards`: rows of telemetry.shard_schema. `rerun`: number of rows that run again, by shard."""
        rerun_rows = sum(rerun.values())
        return cls(
            shards=shards.num_rows - len(rerun),
            rows=total(shards, "rows") - rerun_rows,
            failed_rows=total(shards, "failed_rows") - rerun_rows,
            input_tokens=total(shards, "input_tokens"),
            output_tokens=total(shards, "output_tokens") + total(shards, "scored_tokens"),
            acceptance=acceptance(shards),
        )


class ProgressTracker:
    """Sums the reports of published shards and takes snapshots of the whole run."""

    def __init__(
        self,
        earlier: EarlierProgress,
        tasks: TaskQueue,
        fleet: Fleet,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """now: the driver's clock (`EventQueue.now`)."""
        self._tasks, self._fleet = tasks, fleet
        self._acceptance = earlier.acceptance
        self._published = earlier.shards
        self._done_rows, self._failed_rows = earlier.rows, earlier.failed_rows
        self._total_rows = tasks.rows + earlier.rows
        self._total_shards = len(tasks) + earlier.shards
        self._tokens, self._rows = Speed(), Speed(_ETA_WINDOW_S)
        self._earlier = earlier
        self._tokens_of: dict[str, tuple[int, int]] = {}
        """Input and output tokens of every worker so far, by name: totals never fall when one is lost."""
        self._now, self._began = now, now()
        self.retries = self.lost_workers = 0

    def shard_published(self, report: ShardReport, rows: int) -> None:
        """Adds a published shard. `rows`: the number of rows that were run for it."""
        self._acceptance += report.verified
        self._published += 1
        self._done_rows += rows
        self._failed_rows += report.failed_rows

    def snapshot(self, *, failed_shards: int, draining: bool) -> Progress:
        """Returns the current progress, from the latest statuses."""
        members = list(self._fleet.ready.values())
        statuses = [member.status for member in members if member.status is not None]
        unreported = sum(max(0, member.status.rows_done - member.reported_rows) for member in members if member.status)
        done = min(self._total_rows, self._done_rows + unreported)
        now = self._now()
        self._rows.add(now, done)
        self._tokens_of |= {m.name: (m.status.input_tokens, m.status.output_tokens) for m in members if m.status}
        output_tokens = self._earlier.output_tokens + sum(made for _, made in self._tokens_of.values())
        self._tokens.add(now, output_tokens)
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
            eta_s=self._eta_s(done),
            draining=draining,
            input_tokens=self._earlier.input_tokens + sum(read for read, _ in self._tokens_of.values()),
            output_tokens=output_tokens,
            retries=self.retries,
            lost_workers=self.lost_workers,
        )

    def _eta_s(self, done: int) -> float | None:
        """Returns the remaining seconds; None before enough rows have ended: the first end in bursts, or are short."""
        finished, rows_per_s = done - self._earlier.rows, self._rows.per_second
        if not rows_per_s or finished < min(_ETA_ROWS, self._total_rows // 4):
            return None
        return (self._total_rows - done) / rows_per_s

    def _acceptance_length(self, statuses: list[WorkerStatus]) -> float:
        """Returns that of all published shards, or of the shards in flight while none is published."""
        if self._acceptance.drafts:
            return self._acceptance.acceptance_length
        drafts = sum(status.drafts for status in statuses)
        return 1.0 + (sum(status.accepted_tokens for status in statuses) / drafts if drafts else 0.0)
