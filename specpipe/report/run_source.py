"""What a report is made of: a run's own files, read by whoever has the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from specpipe.speculation.cost_table import CostTable


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorExample:
    """A row that failed. All of it is text from outside, shown and never trusted."""

    request_id: str
    prompt: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSource:
    """A run, live or finished."""

    folder: str
    state: str
    """complete, incomplete, interrupted, failed or running."""
    summary: Mapping[str, Any]
    """summary.json, or what it would be now."""
    identity: Mapping[str, Any]
    """The manifest's: what makes the outputs, by dotted name."""
    tuning: Mapping[str, Any]
    """The manifest's: what may change between starts, by dotted name."""
    created_at: str
    shards: pa.Table
    """telemetry/shards.parquet: one row a published shard."""
    timelines: Sequence[pa.Table]
    """telemetry/timeline-*.parquet, one a start, in order."""
    costs: CostTable | None = None
    """What rounds took on the hardware that ran most of them; None where the run left no telemetry/costs.json."""
    errors: Sequence[ErrorExample] = ()
    """Some of the failed rows."""

    @property
    def name(self) -> str:
        return str(self.summary["name"])

    @property
    def device_word(self) -> str:
        """What a second is charged to: "GPU" where every device is one, "worker" elsewhere."""
        devices = self.summary["devices"]
        return "GPU" if devices and not any(str(device).startswith("cpu") for device in devices) else "worker"
