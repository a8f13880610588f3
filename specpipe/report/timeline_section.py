"""Section on a run over time: throughput, queue depth, occupancy, K and acceptance."""

from __future__ import annotations

import numpy as np

from specpipe.arrays import Array
from specpipe.report.binned_timeline import BinnedTimeline, bin_timelines
from specpipe.report.elements import Figure, ReportSection, Table
from specpipe.report.number_format import decimal, duration
from specpipe.report.plots import lines, plot
from specpipe.report.run_source import RunSource

_TABLE_ROWS = 16


def timeline_section(source: RunSource) -> ReportSection | None:
    """Returns the section on the run over time; None if the run was too short for a timeline."""
    timeline = bin_timelines(source.timelines)
    if timeline is None:
        return None
    intro = (
        f"Each point is the mean of {timeline.width_s:,.0f} s. Loading models and pauses between starts are left out."
    )
    if timeline.starts:
        intro += " Dotted lines mark further starts of the run."
    figures = [
        timeline_figure(
            timeline, "Output tokens per second", "tokens-per-second", {"all workers": timeline.tokens_per_s}, 0
        ),
        timeline_figure(timeline, "Queue depth", "queue-depth", {"rows per worker": timeline.queue_depth}, 0),
    ]
    if np.isfinite(timeline.occupancy).any():
        series = {"rows running": timeline.occupancy}
        figures.append(timeline_figure(timeline, "Occupancy", "occupancy", series, 1, limit=timeline.slots))
    if np.isfinite(timeline.k).any():  # a run of score rows alone has no rounds
        figures.append(timeline_figure(timeline, "K", "k", {"mean over row-rounds": timeline.k}, 2))
    if np.isfinite(timeline.acceptance_length).any():
        series = {"tokens per draft": timeline.acceptance_length}
        figures.append(timeline_figure(timeline, "Acceptance length", "acceptance-length", series, 2, floor=1.0))
    return ReportSection(title="Over time", intro=intro, figures=figures)


def timeline_figure(
    timeline: BinnedTimeline,
    title: str,
    name: str,
    series: dict[str, Array],
    digits: int,
    *,
    floor: float = 0.0,
    limit: Array | None = None,
) -> Figure:
    """Returns curves over the run's time and a table of some of their points.

    Args:
        timeline: The run's timeline.
        title: Title of the figure.
        name: Unique in the page; prefix of ids in the SVG.
        series: Values [bins] by the name of the curve.
        digits: Decimal places of values in texts.
        floor: Lower end of the y axis.
        limit: Number of slots [bins], drawn as a dashed curve.
    """
    slots = None if limit is None else ("slots", limit)
    first = next(iter(series.values()))
    finite = first[np.isfinite(first)]
    low, high, mean = (decimal(float(f(finite)), digits) for f in (np.min, np.max, np.mean))
    alt = f"{title} over {duration(float(timeline.seconds[-1]))}: from {low} to {high}, mean {mean}"
    return Figure(
        title=title,
        alt=alt,
        svg=plot(name, alt, lines(timeline.seconds, series, limit=slots, starts=timeline.starts, floor=floor)),
        table=_table(timeline, series, digits),
    )


def _table(timeline: BinnedTimeline, series: dict[str, Array], digits: int) -> Table:
    shown = np.unique(np.linspace(0, timeline.bins - 1, min(_TABLE_ROWS, timeline.bins)).astype(int))
    return Table(
        head=("at", *series),
        rows=[
            (duration(float(timeline.seconds[i])), *(decimal(float(values[i]), digits) for values in series.values()))
            for i in shown
        ],
        note=f"{len(shown)} of {timeline.bins:,} points." if len(shown) < timeline.bins else "",
    )
