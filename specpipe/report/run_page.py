"""The page of a run."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.report.cost_section import cost_of, what_it_cost
from specpipe.report.elements import DASH, ReportSection, count, fixed
from specpipe.report.engine_time_section import time_spent
from specpipe.report.goodput_section import goodput
from specpipe.report.overview_section import what_ran
from specpipe.report.page import render
from specpipe.report.run_source import RunSource
from specpipe.report.shard_sections import errors, failed_shards, slowest_shards
from specpipe.report.speculation_section import speculation
from specpipe.report.timeline_section import over_time

_BAD = ("failed", "incomplete", "interrupted")


def render_run(source: RunSource) -> str:
    """HTML that loads nothing, of bounded size whatever the run's. Text of rows and files is escaped."""
    parts = (
        what_ran(source),
        what_it_cost(source),
        failed_shards(source),
        errors(source),
        speculation(source),
        over_time(source),
        goodput(source),
        time_spent(source),
        slowest_shards(source),
    )
    sections: Sequence[ReportSection] = [part for part in parts if part is not None]
    summary = source.summary
    return render(
        title=source.name,
        state=source.state,
        tone="good" if source.state == "complete" else "bad" if source.state in _BAD else "live",
        verdict="Synthetic acceptance: the outputs are no text to use." if summary["synthetic"] else "",
        tiles=_tiles(source),
        sections=sections,
        footer=f"specpipe {summary['versions'].get('specpipe', '')}, run {summary['run_id']}",
    )


def _tiles(source: RunSource) -> list[tuple[str, str, str]]:
    """The figures that one looks for first: name, value, remark."""
    summary = source.summary
    done = summary["completed"] + summary["failed"]
    failed = f", {count(summary['failed'])} failed" if summary["failed"] else ""
    drafts = summary["spec_decode_num_drafts"]
    return [
        ("Rows", count(done), f"of {count(summary['total_rows'])}{failed}"),
        ("Output tokens/s", fixed(summary["output_throughput"], 1), f"peak {count(summary['peak_output_throughput'])}"),
        (
            "Acceptance length",
            fixed(summary["spec_decode_acceptance_length"]) if drafts else DASH,
            f"{summary['spec_decode_acceptance_rate']:.1%} of draft tokens" if drafts else "no speculation",
        ),
        (
            f"Tokens per {source.device_word}-second",
            fixed(cost_of(source.shards).tokens_per_second, 1),
            f"{count(summary['busy_s'])} s busy",
        ),
    ]
