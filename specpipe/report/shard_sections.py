"""The shards that took longest, and those that no attempt could finish."""

from __future__ import annotations

import pyarrow.compute as pc

from specpipe.report.elements import ReportSection, Table, clipped, count, fixed, seconds
from specpipe.report.overview_section import more
from specpipe.report.run_source import RunSource

_SLOWEST, _FAILED = 10, 20
_LONGEST, _LONGEST_NAME = 400, 60


def slowest_shards(source: RunSource) -> ReportSection | None:
    """None while nothing is published."""
    if not source.shards.num_rows:
        return None
    table = source.shards.append_column(
        "seconds", pc.subtract(source.shards["finished_at"], source.shards["started_at"])
    )
    order = pc.select_k_unstable(table, _SLOWEST, [("seconds", "descending")])
    rows = [
        (
            str(row["shard"]),
            seconds(row["seconds"]),
            count(row["rows"]),
            count(row["output_tokens"]),
            fixed(row["tokens_per_s"], 1),
            fixed(1 + row["accepted_tokens"] / row["drafts"] if row["drafts"] else None),
            fixed(row["mean_occupancy"], 1),
            fixed(row["queue_depth"], 0),
            clipped(row["worker"], _LONGEST_NAME),
            str(row["attempt"]),
            clipped(row["plan_reason"], _LONGEST),
        )
        for row in table.take(order).to_pylist()
    ]
    head = ("shard", "took", "rows", "tokens", "tokens/s", "acceptance length", "occupancy", "queue depth", "worker")
    return ReportSection(
        title="Slowest shards",
        intro="By the time from taking a shard to its part. Tokens/s: of the engine time that is its own share.",
        tables=[Table(head=(*head, "attempt", "plan"), rows=rows, note=more(table.num_rows, _SLOWEST, "shards"))],
    )


def failed_shards(source: RunSource) -> ReportSection | None:
    """None where none failed."""
    failed = list(source.summary["failed_shards"].items())
    if not failed:
        return None
    rows = [(shard, clipped(str(why), _LONGEST)) for shard, why in failed[:_FAILED]]
    return ReportSection(
        title="Failed shards",
        intro="No attempt could finish these. Start the run again to try them once more.",
        tables=[Table(head=("shard", "last reason"), rows=rows, note=more(len(failed), _FAILED, "shards"))],
    )


def errors(source: RunSource) -> ReportSection | None:
    """None where no row failed."""
    failed = source.summary["failed"]
    if not failed:
        return None
    rows = [(e.request_id, clipped(e.error, _LONGEST), clipped(e.prompt, _LONGEST)) for e in source.errors]
    note = more(failed, len(rows), "failed rows")
    return ReportSection(
        title="Failed rows",
        intro=f"{count(failed)} rows have an error in the output's column error; --retry-failed runs them again.",
        tables=[Table(head=("request", "error", "prompt"), rows=rows, note=note)] if rows else (),
    )
