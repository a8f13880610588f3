"""Sections on failures: shards that no attempt finished, and rows that have an error."""

from __future__ import annotations

from specpipe.report.elements import ReportSection, Table
from specpipe.report.number_format import clipped, count, omitted_note
from specpipe.report.run_source import RunSource

_MAX_SHARDS = 20
_MAX_CHARACTERS = 400  # of a cell


def failed_shards_section(source: RunSource) -> ReportSection | None:
    """Returns the section on failed shards; None if there are none."""
    failed = list(source.summary["failed_shards"].items())
    if not failed:
        return None
    rows = [(shard, clipped(str(reason), _MAX_CHARACTERS)) for shard, reason in failed[:_MAX_SHARDS]]
    note = omitted_note(len(failed), _MAX_SHARDS, "shards")
    return ReportSection(
        title="Failed shards",
        intro="No attempt finished these shards. Run the job again to retry them.",
        tables=[Table(head=("shard", "last reason"), rows=rows, note=note)],
    )


def failed_rows_section(source: RunSource) -> ReportSection | None:
    """Returns the section on rows with an error, with some examples; None if there are none."""
    failed = source.summary["failed"]
    if not failed:
        return None
    rows = [
        (example.request_id, clipped(example.error, _MAX_CHARACTERS), clipped(example.prompt, _MAX_CHARACTERS))
        for example in source.errors
    ]
    note = omitted_note(failed, len(rows), "failed rows")
    return ReportSection(
        title="Failed rows",
        intro=f"{count(failed)} rows have an error in the output column error. Run the job again with --retry-failed "
        "to retry them.",
        tables=[Table(head=("request", "error", "prompt"), rows=rows, note=note)] if rows else (),
    )
