"""Sections on rows: lengths and acceptance of many rows, and some answers with the drafts that were accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specpipe.report.elements import Figure, Marked, Pair, ReportSection, Table
from specpipe.report.number_format import DASH, clipped, count, decimal, omitted_note, percent
from specpipe.report.plots import bars, plot
from specpipe.report.run_source import RowGroup, RunSource

_MAX_CHARACTERS = 600  # of a text
_MAX_GROUPS = 20


def rows_section(source: RunSource) -> ReportSection | None:
    """Returns the section on lengths, and on acceptance by the values of kept columns; None without generated rows."""
    rows = source.rows
    if rows is None or not rows.rows:
        return None
    some = "" if rows.parts == source.shards.num_rows else f" of {count(rows.parts)} parts, spread over the run"
    return ReportSection(
        title="Rows",
        intro=f"{count(rows.rows)} generated rows{some}.",
        figures=[_length_figure(rows.prompt_tokens, rows.output_tokens, rows.rows)],
        tables=[_groups_table(column, groups) for column, groups in rows.by_column.items()],
    )


def _length_figure(prompt: Mapping[int, int], output: Mapping[int, int], rows: int) -> Figure:
    """Returns the shares of rows by length. prompt, output: rows by the power of 2 that bounds their tokens."""
    powers = range(min([*prompt, *output]), max([*prompt, *output]) + 1)
    labels = [count(2**power) for power in powers]
    series = {
        name: [found.get(power, 0) / rows for power in powers]
        for name, found in (("prompt", prompt), ("output", output))
    }
    most = {name: labels[shares.index(max(shares))] for name, shares in series.items()}
    alt = "Rows by length; most prompts have up to {prompt} tokens, most outputs up to {output}".format(**most)
    return Figure(
        title="Rows by length",
        alt=alt,
        svg=plot("lengths", alt, bars(labels, series, "tokens, up to")),
        table=Table(
            head=("tokens, up to", *series),
            rows=[(label, *(percent(shares[i], 1) for shares in series.values())) for i, label in enumerate(labels)],
        ),
    )


def _groups_table(column: str, groups: Sequence[RowGroup]) -> Table:
    """Returns rows and acceptance by the values of a kept column, the most frequent first."""
    ordered = sorted(groups, key=lambda group: (-group.rows, group.value))
    return Table(
        head=(column, "rows", "accepted", "output tokens per row"),
        rows=[
            (
                clipped(group.value, _MAX_CHARACTERS),
                count(group.rows),
                percent(group.accepted_tokens / group.draft_tokens, 1) if group.draft_tokens else DASH,
                decimal(group.output_tokens / group.rows, 1),
            )
            for group in ordered[:_MAX_GROUPS]
        ],
        note=omitted_note(len(ordered), _MAX_GROUPS, "values"),
    )


def answers_section(source: RunSource) -> ReportSection | None:
    """Returns the section on examples of answers; None without one."""
    if not source.answers:
        return None
    drafts = any(example.draft_tokens for example in source.answers)
    return ReportSection(
        title="Answers",
        intro="Some rows of the first and last parts"
        + (
            ", by the share of their draft tokens that was accepted: the least first. Accepted tokens are marked."
            if drafts
            else "."
        ),
        pairs=[
            Pair(
                title=f"{example.request_id}: "
                + (f"{percent(example.acceptance)} accepted" if example.draft_tokens else "no drafts"),
                left=[(clipped(example.prompt, _MAX_CHARACTERS), False)],
                right=_clipped(example.answer),
                is_open=True,
            )
            for example in source.answers
        ],
    )


def _clipped(pieces: Marked) -> Marked:
    """Returns the first characters of the pieces."""
    found, left = [], _MAX_CHARACTERS
    for text, marked in pieces:
        if left > 0:
            found.append((clipped(text, left), marked))
        left -= len(text)
    return found
