"""A history as plots: accuracy and acceptance over time, in the terminal and as one self-contained page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _PAD = 720, 160, 44
_STYLE = "body{font:15px/1.5 system-ui,sans-serif;max-width:800px;margin:2em auto}svg{background:#fafafa}"


class Series(NamedTuple):
    """One quantity over time."""

    name: str
    times: Sequence[str]
    values: Sequence[float]


def history_series(table: Any) -> Iterator[tuple[str, tuple[Series, ...]]]:
    """For each job, task, filter and metric a title and its curves. table: of history.SCHEMA."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        groups.setdefault((row["job"], row["task"], row["filter"], row["metric"]), []).append(row)
    for (job, task, filter_name, metric), rows in groups.items():
        rows.sort(key=lambda row: row["time"])
        times = [row["time"].strftime("%Y-%m-%d %H:%M") for row in rows]
        names = ("speculative", "plain", "acceptance_length")
        curves = tuple(Series(name, times, [row[name] for row in rows]) for name in names)
        yield f"{job}: {task}, {metric} ({filter_name})", curves


def sparkline(values: Sequence[float]) -> str:
    """One character a value, between the lowest and the highest."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def history_page(table: Any) -> str:
    """HTML with a plot of each curve; nothing in it is loaded from elsewhere."""
    parts = ['<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluations over time</title>']
    parts.append(f"<style>{_STYLE}</style><h1>Evaluations over time</h1>")
    for title, (speculative, plain, acceptance) in history_series(table):
        parts.append(f"<h2>{html.escape(title)}</h2><p>Score: speculative (solid) and plain (dashed)</p>")
        parts.append(_plot((speculative, plain)))
        parts.append(f"<p>Acceptance length</p>{_plot((acceptance,))}")
    return "".join([*parts, "</html>\n"])


def _plot(curves: Sequence[Series]) -> str:
    values = [value for curve in curves for value in curve.values]
    low, high = min(values), max(values)
    margin = (high - low) * 0.1 or max(abs(high), 1.0) * 0.05
    low, high = low - margin, high + margin

    def point(i: int, count: int, value: float) -> tuple[float, float]:
        x = _PAD + (_WIDTH - 2 * _PAD) * (i / (count - 1) if count > 1 else 0.5)
        return x, _HEIGHT - 24 - (_HEIGHT - 40) * (value - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">']
    for curve, style in zip(curves, ('stroke="#16a"', 'stroke="#c60" stroke-dasharray="5 4"'), strict=False):
        points = [point(i, len(curve.values), value) for i, value in enumerate(curve.values)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" {style} stroke-width="2" points="{line}"/>')
        for (x, y), time, value in zip(points, curve.times, curve.values, strict=True):
            label = html.escape(f"{time}: {curve.name} {value:.4f}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#16a"><title>{label}</title></circle>')
    text = '<text x="{}" y="{}" font-size="11" fill="#666">{}</text>'
    parts += [text.format(2, 16, f"{high - margin:.4g}"), text.format(2, _HEIGHT - 26, f"{low + margin:.4g}")]
    parts.append(text.format(_PAD, _HEIGHT - 6, html.escape(f"{curves[0].times[0]} to {curves[0].times[-1]}")))
    return "".join([*parts, "</svg>"])
