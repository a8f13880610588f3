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
    """One interval of one worker. Idle intervals leave none."""

    second: int
    """Unix second at which the interval began."""
    interval_s: int
    epoch: int
    worker: str
    queue_depth: float
    """At the end of the interval."""
    slots: int
    occupancy: float
    """Rows running, weighted by time."""
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
    expected_tokens_per_s: float = 0.0
    """What the ruling plans expected at the occupancies of the interval, weighted by time; 0 where they did not say."""
    proposer: str = "none"
    """That drafted most row-rounds; "none" where nobody did."""
    plan_reason: str = ""
    """Of the plan that ruled at the end of the interval."""


def timeline_schema() -> pa.Schema:
    """The columns of telemetry/timeline-….parquet, in the order of TimelineInterval's fields."""
    hints = get_type_hints(TimelineInterval)
    return pa.schema([pa.field(item.name, _ARROW[hints[item.name]]) for item in dataclasses.fields(TimelineInterval)])


def timeline_batch(samples: Iterable[TimelineInterval]) -> pa.RecordBatch:
    """Samples as Arrow, about a tenth of their size as objects."""
    return pa.RecordBatch.from_pylist([dataclasses.asdict(sample) for sample in samples], schema=timeline_schema())


def peak_tokens_per_s(timelines: Iterable[pa.Table]) -> float:
    """The best interval of all, summed over workers; 0.0 for an empty timeline."""
    best = 0.0
    for table in timelines:
        if table.num_rows:
            sums = table.group_by("second").aggregate([("tokens_per_s", "sum")])
            best = max(best, max(sums["tokens_per_s_sum"].to_pylist()))
    return float(best)
