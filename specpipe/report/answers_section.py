"""Section on what was written: some rows, with those whose drafts were accepted least and most."""

from __future__ import annotations

from specpipe.report.elements import ReportSection, Table
from specpipe.report.number_format import DASH, clipped, decimal
from specpipe.report.run_source import RunSource

_MAX_CHARACTERS = 600  # of a cell


def answers_section(source: RunSource) -> ReportSection | None:
    """Returns the section on examples of answers; None without one."""
    rows = [
        (
            example.request_id,
            decimal(100 * example.acceptance, 0) + " %" if example.draft_tokens else DASH,
            clipped(example.prompt, _MAX_CHARACTERS),
            clipped(example.answer, _MAX_CHARACTERS),
        )
        for example in source.answers
    ]
    if not rows:
        return None
    return ReportSection(
        title="Answers",
        intro="Some rows of the first and last parts, by the share of their draft tokens that was accepted: the least "
        "first, the most last.",
        tables=[Table(head=("request", "accepted", "prompt", "answer"), rows=rows, note="")],
    )
