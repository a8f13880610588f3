"""What a driver is given, what it tells meanwhile, and what its run comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specpipe.core import BACKUP_S, MAX_ATTEMPTS, SHARDS_IN_FLIGHT, STALL_S, ShardReport
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import WorkerInfo
from specpipe.telemetry.timeline_interval import TimelineInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverConfig:
    workers: int
    """Most at once; those without a place wait for one."""
    slots: int
    in_flight: int = SHARDS_IN_FLIGHT
    """Shards that a worker holds at once; up to MAX_SHARDS_IN_FLIGHT where they are small."""
    max_attempts: int = MAX_ATTEMPTS
    warm_up: bool = False
    poll_s: float = 1.0
    stall_s: float = STALL_S
    """A worker whose engine step or answer takes longer is taken for hung, and replaced."""
    backup_s: float = BACKUP_S
    """The last shards may be given to an idle worker too when they have been running for longer than this, and longer
    than the mean shard."""


@dataclass(slots=True)
class DriverResult:
    """What a driver's run came to."""

    failed: dict[int, str] = field(default_factory=dict)
    """Shards that no attempt could finish -> the last reason."""
    contested: set[int] = field(default_factory=set)
    """Shards that two workers may have published: only the part's own footer says whose it is."""
    interrupted: bool = False
    workers: dict[str, WorkerInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observers:
    """Called on the driver's thread; they must be quick."""

    progress: Callable[[Progress], None] = lambda progress: None
    published: Callable[[ShardReport], None] = lambda report: None
    """Once a shard. The driver itself keeps nothing of it."""
    samples: Callable[[Sequence[TimelineInterval]], None] = lambda samples: None
