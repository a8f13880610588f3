"""What the engine's time went into, and how long rows waited for tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from specpipe.report.elements import Figure, ReportSection, Table, count, fixed, percent
from specpipe.report.plots import bars_across, cumulative, plot
from specpipe.report.run_source import RunSource
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_table import histogram

_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency"}


def time_spent(source: RunSource) -> ReportSection | None:
    """None while nothing is published."""
    if not source.shards.num_rows:
        return None
    return ReportSection(
        title="Where the time went",
        intro="Rounds are split over shards by rows, prefill by tokens; host is what no other phase accounts for. "
        "Latencies count from the moment at which a row gets its slot.",
        figures=[_phases(source), *_latencies(source)],
    )


def _phases(source: RunSource) -> Figure:
    spent = {phase: s for phase, s in source.summary["phase_seconds"].items() if phase != "load"}
    busy = sum(spent.values()) or 1.0
    shares = [percent(s / busy, 1) for s in spent.values()]
    alt = "Engine time by phase: " + ", ".join(f"{phase} {share}" for phase, share in zip(spent, shares, strict=True))
    return Figure(
        title="Engine time by phase",
        alt=alt,
        svg=plot("phases", alt, bars_across(list(spent), list(spent.values()), shares)),
        table=Table(
            head=("phase", "seconds", "share"),
            rows=[(phase, fixed(s, 1), share) for (phase, s), share in zip(spent.items(), shares, strict=True)],
        ),
    )


def _latencies(source: RunSource) -> Iterable[Figure]:
    merged = {name: histogram(source.shards, column) for column, name in _LATENCIES.items()}
    merged = {name: values for name, values in merged.items() if values.count}
    if not merged:
        return
    alt = "Latencies: " + "; ".join(
        f"{name} median {_ms(values.quantile(0.5))} ms, P99 {_ms(values.quantile(0.99))} ms"
        for name, values in merged.items()
    )
    curves = {short.upper(): _curve(merged[name]) for short, name in _LATENCIES.items() if name in merged}
    yield Figure(
        title="Latencies",
        alt=alt,
        svg=plot("latencies", alt, cumulative(curves, "milliseconds, share of values at or below")),
        table=Table(
            head=("latency, ms", "values", "mean", "median", "P90", "P99", "longest"),
            rows=[
                (
                    name,
                    count(values.count),
                    _ms(values.mean),
                    *(_ms(values.quantile(q)) for q in (0.5, 0.9, 0.99)),
                    _ms(values.high),
                )
                for name, values in merged.items()
            ],
        ),
    )


def _curve(values: LogHistogram) -> tuple[Any, Any]:
    """Milliseconds and the share of values up to there, at a hundred shares at most."""
    shares = np.linspace(0.01, 1.0, 100)
    return [1e3 * max(values.quantile(float(q)), 1e-6) for q in shares], shares


def _ms(value_s: float) -> str:
    return fixed(1e3 * value_s, 1)
