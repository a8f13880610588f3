"""Queue depth, occupancy, K, speed and acceptance while the run went on."""

from __future__ import annotations

import numpy as np

from specpipe.report.binned_timeline import BinnedTimeline, Points, bin_timelines
from specpipe.report.elements import Figure, ReportSection, Table, fixed, seconds
from specpipe.report.plots import lines, plot
from specpipe.report.run_source import RunSource

_TABLE_ROWS = 16


def over_time(source: RunSource) -> ReportSection | None:
    """None for a run too short to leave a timeline."""
    timeline = bin_timelines(source.timelines)
    if timeline is None:
        return None
    intro = f"A point is {timeline.width_s:,.0f} s. Loading models and pauses between starts are left out."
    if timeline.starts:
        intro += " Dotted lines: the run was started again."
    figures = [
        over_time_figure(
            timeline, "Output tokens per second", "tokens-per-second", {"all workers": timeline.tokens_per_s}, 0
        ),
        over_time_figure(timeline, "Queue depth", "queue-depth", {"rows per worker": timeline.queue_depth}, 0),
        over_time_figure(
            timeline, "Occupancy", "occupancy", {"rows running": timeline.occupancy}, 1, limit=timeline.slots
        ),
        over_time_figure(timeline, "K", "k", {"mean over row-rounds": timeline.k}, 2),
    ]
    if np.isfinite(timeline.acceptance_length).any():
        drafted = {"tokens a draft yields": timeline.acceptance_length}
        figures.append(over_time_figure(timeline, "Acceptance length", "acceptance-length", drafted, 2, floor=1.0))
    return ReportSection(title="Over time", intro=intro, figures=figures)


def over_time_figure(
    timeline: BinnedTimeline,
    title: str,
    name: str,
    series: dict[str, Points],
    digits: int,
    *,
    floor: float = 0.0,
    limit: Points | None = None,
) -> Figure:
    """Curves over the run's time, and a table of some of their points."""
    slots = None if limit is None else ("slots", limit)
    first = next(iter(series.values()))
    finite = first[np.isfinite(first)]
    low, high, mean = (fixed(float(f(finite)), digits) for f in (np.min, np.max, np.mean))
    alt = f"{title} over {seconds(float(timeline.seconds[-1]))}: from {low} to {high}, mean {mean}"
    return Figure(
        title=title,
        alt=alt,
        svg=plot(name, alt, lines(timeline.seconds, series, limit=slots, starts=timeline.starts, floor=floor)),
        table=_table(timeline, series, digits),
    )


def _table(timeline: BinnedTimeline, series: dict[str, Points], digits: int) -> Table:
    shown = np.unique(np.linspace(0, timeline.bins - 1, min(_TABLE_ROWS, timeline.bins)).astype(int))
    return Table(
        head=("at", *series),
        rows=[
            (seconds(float(timeline.seconds[i])), *(fixed(float(values[i]), digits) for values in series.values()))
            for i in shown
        ],
        note=f"{len(shown)} of {timeline.bins:,} points." if len(shown) < timeline.bins else "",
    )
