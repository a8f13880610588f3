"""Section on the shards that took longest."""

from __future__ import annotations

import pyarrow.compute as pc

from specpipe.report.elements import ReportSection, Table
from specpipe.report.number_format import clipped, count, decimal, duration, omitted_note
from specpipe.report.run_source import RunSource

_MAX_SHARDS = 10
_MAX_CHARACTERS, _MAX_NAME_CHARACTERS = 400, 60  # of a cell
_HEAD = (
    *("shard", "duration", "rows", "tokens", "tokens/s", "acceptance length", "occupancy", "queue depth", "worker"),
    *("attempt", "plan"),
)


def slowest_shards_section(source: RunSource) -> ReportSection | None:
    """Returns the section on the slowest shards; None while no shard is published."""
    if not source.shards.num_rows:
        return None
    table = source.shards.append_column(
        "seconds", pc.subtract(source.shards["finished_at"], source.shards["started_at"])
    )
    order = pc.select_k_unstable(table, _MAX_SHARDS, [("seconds", "descending")])
    rows = [
        (
            str(row["shard"]),
            duration(row["seconds"]),
            count(row["rows"]),
            count(row["output_tokens"]),
            decimal(row["tokens_per_s"], 1),
            decimal(1 + row["accepted_tokens"] / row["drafts"] if row["drafts"] else None),
            decimal(row["mean_occupancy"], 1),
            decimal(row["queue_depth"], 0),
            clipped(row["worker"], _MAX_NAME_CHARACTERS),
            str(row["attempt"]),
            clipped(row["plan_reason"], _MAX_CHARACTERS),
        )
        for row in table.take(order).to_pylist()
    ]
    return ReportSection(
        title="Slowest shards",
        intro="Duration: from the arrival at a worker to the published part. Tokens/s: output tokens per second of the "
        "shard's share of engine time.",
        tables=[Table(head=_HEAD, rows=rows, note=omitted_note(table.num_rows, _MAX_SHARDS, "shards"))],
    )
