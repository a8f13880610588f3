"""Evaluation history as plots of accuracy and acceptance over time: for the terminal, and as one HTML page."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specpipe.report.elements import Figure, ReportSection, Table
from specpipe.report.page import render
from specpipe.report.plots import dated, plot

_BARS = "▁▂▃▄▅▆▇█"
_TIME = "%Y-%m-%d %H:%M"
_ROWS = 50


class HistorySeries(NamedTuple):
    """Values of one quantity over time."""

    name: str
    times: Sequence[datetime.datetime]
    values: Sequence[float]


def history_series(table: Any) -> Iterator[tuple[str, tuple[HistorySeries, ...]]]:
    """Yields (title, curves) for each job, task, filter and metric. table: pyarrow.Table of eval_history.SCHEMA."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        groups.setdefault((row["job"], row["task"], row["filter"], row["metric"]), []).append(row)
    for (job, task, filter_name, metric), rows in groups.items():
        rows.sort(key=lambda row: row["time"])
        times = [row["time"] for row in rows]
        names = ("candidate", "baseline", "acceptance_length")
        curves = tuple(HistorySeries(name, times, [row[name] for row in rows]) for name in names)
        yield f"{job}: {task}, {metric} ({filter_name})", curves


def sparkline(values: Sequence[float]) -> str:
    """Returns one bar character per value, scaled from the lowest to the highest."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def history_page(table: Any) -> str:
    """Returns the page as HTML. It loads no external resources. table: pyarrow.Table of eval_history.SCHEMA."""
    sections = []
    for i, (title, (candidate, baseline, acceptance)) in enumerate(history_series(table)):
        figures = (
            _figure(f"score-{i}", "Score", candidate, baseline),
            _figure(f"length-{i}", "Acceptance length", acceptance),
        )
        sections.append(ReportSection(title=title, figures=figures))
    return render(title="Evaluations over time", sections=sections)


def _figure(name: str, title: str, *curves: HistorySeries) -> Figure:
    times = curves[0].times
    newest = ", ".join(f"{curve.name.replace('_', ' ')} {curve.values[-1]:.4f}" for curve in curves)
    alt = f"{title} of {len(times)} evaluations from {times[0]:{_TIME}} to {times[-1]:{_TIME}}; the newest: {newest}"
    rows = [
        (f"{time:{_TIME}}", *(f"{curve.values[i]:.4f}" for curve in curves))
        for i, time in reversed(list(enumerate(times)))
    ]
    return Figure(
        title=title,
        alt=alt,
        svg=plot(name, alt, dated(times, {curve.name: curve.values for curve in curves})),
        table=Table(
            head=("time", *(curve.name.replace("_", " ") for curve in curves)),
            rows=rows[:_ROWS],
            note=f"The newest {_ROWS} of {len(rows):,}." if len(rows) > _ROWS else "",
        ),
    )
