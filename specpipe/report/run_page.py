"""The report of a run: order of its sections, and the figures at its top."""

from __future__ import annotations

from specpipe.report.cost_section import cost_of, cost_section
from specpipe.report.engine_time_section import engine_time_section
from specpipe.report.failure_sections import failed_rows_section, failed_shards_section
from specpipe.report.goodput_section import goodput_section
from specpipe.report.number_format import DASH, count, decimal
from specpipe.report.overview_section import overview_section
from specpipe.report.page import render
from specpipe.report.row_sections import answers_section, rows_section
from specpipe.report.run_source import RunSource
from specpipe.report.slowest_shards_section import slowest_shards_section
from specpipe.report.speculation_section import speculation_section
from specpipe.report.timeline_section import timeline_section

_BAD_STATES = ("failed", "incomplete", "interrupted")


def render_run(source: RunSource) -> str:
    """Returns the page of a run. It loads no other resources, and its size is bounded; text of rows is escaped."""
    sections = (
        overview_section(source),
        cost_section(source),
        failed_shards_section(source),
        failed_rows_section(source),
        speculation_section(source),
        timeline_section(source),
        goodput_section(source),
        engine_time_section(source),
        slowest_shards_section(source),
        rows_section(source),
        answers_section(source),
    )
    summary = source.summary
    return render(
        title=source.name,
        state=source.state,
        tone="good" if source.state == "complete" else "bad" if source.state in _BAD_STATES else "live",
        verdict="Synthetic acceptance: the outputs are not usable text." if summary["synthetic"] else "",
        tiles=_tiles(source),
        sections=[section for section in sections if section is not None],
        footer=f"specpipe {summary['versions'].get('specpipe', '')}, run {summary['run_id']}",
    )


def _tiles(source: RunSource) -> list[tuple[str, str, str]]:
    """Returns the most important figures as (name, value, remark)."""
    summary = source.summary
    done = summary["completed"] + summary["failed"]
    failed = f", {count(summary['failed'])} failed" if summary["failed"] else ""
    drafts = summary["spec_decode_num_drafts"]
    return [
        ("Rows", count(done), f"of {count(summary['total_rows'])}{failed}"),
        (
            "Output tokens/s",
            decimal(summary["output_throughput"], 1),
            f"peak {count(summary['peak_output_throughput'])}",
        ),
        (
            "Acceptance length",
            decimal(summary["spec_decode_acceptance_length"]) if drafts else DASH,
            f"{summary['spec_decode_acceptance_rate']:.1%} of draft tokens" if drafts else "no speculation",
        ),
        (
            f"Tokens per {source.device_noun}-second",
            decimal(cost_of(source.shards).tokens_per_second, 1),
            f"{count(summary['busy_s'])} s busy",
        ),
    ]
