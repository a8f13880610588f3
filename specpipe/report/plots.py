"""Plots of a page by matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specpipe.report.svg import GRID, INK, MUTED, SERIES, page_svg

log = logging.getLogger(__name__)
_SIZE = (5.6, 2.7)  # inches of 72 units: 403 units wide, so that text stays readable on a phone
_BOX = (0.125, 0.2, 0.855, 0.68)  # of the axes; fixed, because layout by text extents takes three times the drawing
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "legend.handlelength": 1.2,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "path.simplify_threshold": 0.5,
}
Draw = Callable[[Any], None]
"""Draws into matplotlib's Axes."""


def plot(name: str, alt: str, draw: Draw) -> str:
    """Returns an <svg> element, or "" and logs a warning if drawing fails: a plot must not end a run.

    `name` is unique in the page; `alt` describes the plot in words.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
            figure = Figure(figsize=_SIZE)
            draw(figure.add_axes(_BOX))
            sink = io.StringIO()
            figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None})
        return page_svg(sink.getvalue(), name=name, alt=alt)
    except Exception as error:
        log.warning("the plot %s could not be drawn: %s: %s", name, type(error).__name__, error)
        return ""


def lines(
    x: Any,
    series: Mapping[str, Any],
    *,
    limit: tuple[str, Any] | None = None,
    starts: Sequence[float] = (),
    floor: float = 0.0,
) -> Draw:
    """Returns curves over seconds.

    Args:
        x: Seconds [n].
        series: Values [n] by the name of the curve.
        limit: Name and values [n] of an upper limit, drawn as a dashed curve.
        starts: Seconds at which later starts of the run began, drawn as dotted lines.
        floor: Lower end of the y axis.
    """

    def draw(axes: Any) -> None:
        scale, unit = _time_unit(float(x[-1]) if len(x) else 0.0)
        for color, (name, y) in zip(SERIES, series.items(), strict=False):
            few_points = np.count_nonzero(np.isfinite(y)) < 3
            axes.plot(np.asarray(x) / scale, y, color=color, label=name, marker="o" if few_points else "")
        if limit is not None:
            axes.plot(np.asarray(x) / scale, limit[1], color=MUTED, label=limit[0], linestyle="--", linewidth=1.2)
        for start in starts:
            axes.axvline(start / scale, color=MUTED, linewidth=1, linestyle=(0, (2, 3)))
        axes.set_xlabel(unit)
        axes.set_xlim(0, float(x[-1]) * 1.01 / scale)
        axes.set_ylim(bottom=floor)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if limit is not None or len(series) > 1:
            _legend(axes, len(series) + 1)

    return draw


def dated(times: Sequence[Any], series: Mapping[str, Sequence[float]]) -> Draw:
    """Returns curves over dates (datetime), with a marker for each value."""

    def draw(axes: Any) -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        for i, (name, y) in enumerate(series.items()):
            axes.plot(times, y, color=SERIES[i], label=name, marker="o", markersize=4, linestyle=("-", "--")[i % 2])
        locator = AutoDateLocator(minticks=2)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.margins(y=0.15)
        if len(series) > 1:
            _legend(axes, len(series))

    return draw


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str) -> Draw:
    """Returns groups of bars side by side; heights are shares from 0 to 1."""

    def draw(axes: Any) -> None:
        width = 0.8 / len(series)
        for i, (name, heights) in enumerate(series.items()):
            places = np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width
            axes.bar(places, heights, width * 0.9, color=SERIES[i], label=name)
        axes.set_xticks(range(len(groups)), groups)
        if len(groups) > 16:
            axes.set_xticks(range(0, len(groups), 4), groups[::4])
        axes.set_xlabel(label)
        axes.set_xlim(-0.6, max(len(groups), 3) - 0.4)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if len(series) > 1:
            _legend(axes, len(series))

    return draw


def bars_across(names: Sequence[str], values: Sequence[float], labels: Sequence[str]) -> Draw:
    """Returns horizontal bars, the first on top, each with a label at its end."""

    def draw(axes: Any) -> None:
        drawn = axes.barh(range(len(names)), values, 0.62, color=SERIES[0])
        axes.bar_label(drawn, labels, padding=4, color=INK)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, max([*values, 1e-9]) * 1.3)
        axes.grid(False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)

    return draw


def cumulative(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], label: str) -> Draw:
    """Returns cumulative distributions on a logarithmic x axis.

    curves: (x, share of values at or below x, from 0 to 1) by the name of the curve.
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        for color, (name, (x, share)) in zip(SERIES, curves.items(), strict=False):
            axes.plot(x, share, color=color, label=name, drawstyle="steps-post")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(label)
        _legend(axes, len(curves))

    return draw


def _legend(axes: Any, entries: int) -> None:
    """Adds a legend above the plot, where it covers no curve."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=entries, borderpad=0, borderaxespad=0.2)


def _time_unit(longest_s: float) -> tuple[float, str]:
    """Returns the unit for times up to `longest_s`, as seconds and name."""
    if longest_s < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest_s < 3 * 3600 else (3600.0, "hours")
