"""A worker's report of one published shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core.acceptance_counts import AcceptanceCounts
from specpipe.core.evidence import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """Small message from a worker to the driver once a shard's part is published."""

    shard: int
    attempt: int
    worker: str
    rows: int
    failed_rows: int
    part: str
    """File name of the part."""
    telemetry: Mapping[str, object]
    """Shard record, flat, as in the part's footer (docs/telemetry.md)."""
    verified: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    evidence: Evidence = field(default_factory=Evidence)
    """Measurements of this worker for the policy, which shares them with all workers."""
