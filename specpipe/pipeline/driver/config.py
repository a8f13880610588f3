"""Configuration, callbacks and result of a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specpipe.core import BACKUP_S, SHARDS_IN_FLIGHT, KVScaleTable, ShardReport
from specpipe.job import JobSpec
from specpipe.job.workers_section import WorkersSection
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import WorkerInfo
from specpipe.telemetry.timeline_interval import TimelineInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverConfig:
    """Settings of a driver: those of the job, and intervals that jobs cannot set."""

    workers: int
    """Number of workers to request. Workers without resources wait for them."""
    settings: WorkersSection = field(default_factory=WorkersSection)
    """The job's `workers` section, of which slots, max_attempts and stall_seconds are used."""
    warm_up: bool = False
    """Workers run some rows before their first shard and discard them."""
    in_flight: int = SHARDS_IN_FLIGHT
    """Shards that a worker holds at once; up to MAX_SHARDS_IN_FLIGHT where shards are small."""
    poll_s: float = 1.0
    """Seconds between two status requests."""
    backup_s: float = BACKUP_S
    """One of the last shards that runs for longer than this, and longer than the mean shard, may get a copy on an idle
    worker. In seconds."""

    @classmethod
    def from_job(cls, job: JobSpec, *, workers: int) -> DriverConfig:
        """Returns the configuration for a job on so many workers."""
        return cls(workers=workers, settings=job.workers, warm_up=job.data.warmup_rows > 0)


@dataclass(slots=True)
class DriverResult:
    """The result of a driver; filled while it runs."""

    failed: dict[int, str] = field(default_factory=dict)
    """Shards that failed in every attempt, with the reason of the last one."""
    maybe_published: set[int] = field(default_factory=set)
    """Shards that two workers may have published: the footer of the part names the one that did."""
    interrupted: bool = False
    """The run was drained before all shards were dispatched."""
    workers: dict[str, WorkerInfo] = field(default_factory=dict)
    """Every worker that was ever ready, by name."""


@dataclass(frozen=True, slots=True)
class Observers:
    """Callbacks of a driver. They run on its thread and must be quick."""

    progress: Callable[[Progress], None] = lambda progress: None
    """Receives a snapshot after every poll."""
    published: Callable[[ShardReport], None] = lambda report: None
    """Receives the report of every published shard, once. The driver does not keep it."""
    samples: Callable[[Sequence[TimelineInterval]], None] = lambda samples: None
    """Receives the timeline intervals of workers."""
    kv_scales: Callable[[KVScaleTable], None] = lambda scales: None
    """Receives the run's scales of KV pages when a worker adds some, before a shard is dispatched to it."""
