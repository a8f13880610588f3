"""Intervals of the timeline: the work of one worker in one second, and the Arrow columns that hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_type_hints

import pyarrow as pa

_ARROW = {int: pa.int64(), float: pa.float64(), str: pa.string()}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineInterval:
    """One interval of one worker. Idle intervals have no record."""

    second: int
    """Unix second at which the interval began."""
    interval_s: int
    epoch: int
    worker: str
    queue_depth: float
    """Queue depth of the plan in force at the end of the interval."""
    slots: int
    occupancy: float
    """Mean of running rows, weighted by time."""
    waiting: int
    """Rows without a slot, at the end of the interval."""
    k: float
    """Mean K over row-rounds."""
    rounds: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float
    acceptance_length: float
    output_tokens: int
    tokens_per_s: float
    """output_tokens / interval_s."""
    followed_tokens: int = 0
    """Accepted tokens that came from earlier answers or the corpus."""
    expected_tokens_per_s: float = 0.0
    """Tokens per second that the plans in force expected at the interval's occupancies, weighted by time; 0 without an
    estimate."""
    proposer: str = "none"
    """Proposer of most row-rounds; "none" where nothing was drafted."""
    plan_reason: str = ""
    """Reason of the plan in force at the end of the interval."""


def timeline_schema() -> pa.Schema:
    """Returns the columns of telemetry/timeline-….parquet, in the order of TimelineInterval's fields."""
    hints = get_type_hints(TimelineInterval)
    return pa.schema([pa.field(item.name, _ARROW[hints[item.name]]) for item in dataclasses.fields(TimelineInterval)])


def timeline_batch(intervals: Iterable[TimelineInterval]) -> pa.RecordBatch:
    """Returns intervals as Arrow, about a tenth of their size as Python objects."""
    return pa.RecordBatch.from_pylist(
        [dataclasses.asdict(interval) for interval in intervals], schema=timeline_schema()
    )


def peak(timelines: Iterable[pa.Table], column: str) -> float:
    """Returns the largest value of a column in any interval, summed over workers; 0.0 for an empty timeline."""
    best = 0.0
    for table in timelines:
        if table.num_rows:
            sums = table.group_by("second").aggregate([(column, "sum")])
            best = max(best, max(sums[f"{column}_sum"].to_pylist()))
    return float(best)
