"""Section on time: engine time by phase, and latencies of rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specpipe.report.elements import Figure, ReportSection, Table
from specpipe.report.number_format import count, decimal, percent
from specpipe.report.plots import bars_across, cumulative, plot
from specpipe.report.run_source import RunSource
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_table import histogram

_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency"}


def engine_time_section(source: RunSource) -> ReportSection | None:
    """Returns the section on engine time and latencies; None while no shard is published."""
    if not source.shards.num_rows:
        return None
    return ReportSection(
        title="Engine time and latencies",
        intro="A round's time is split between shards by rows, that of prefill by tokens; host is the time of no other "
        "phase. Latencies start when a row gets its slot.",
        figures=[_phase_figure(source), *_latency_figures(source)],
    )


def _phase_figure(source: RunSource) -> Figure:
    phases = {phase: s for phase, s in source.summary["phase_seconds"].items() if phase != "load"}
    busy_s = sum(phases.values()) or 1.0
    shares = [percent(s / busy_s, 1) for s in phases.values()]
    alt = "Engine time by phase: " + ", ".join(f"{phase} {share}" for phase, share in zip(phases, shares, strict=True))
    return Figure(
        title="Engine time by phase",
        alt=alt,
        svg=plot("phases", alt, bars_across(list(phases), list(phases.values()), shares)),
        table=Table(
            head=("phase", "seconds", "share"),
            rows=[(phase, decimal(s, 1), share) for (phase, s), share in zip(phases.items(), shares, strict=True)],
        ),
    )


def _latency_figures(source: RunSource) -> Iterable[Figure]:
    merged = {name: histogram(source.shards, column) for column, name in _LATENCIES.items()}
    merged = {name: values for name, values in merged.items() if values.count}
    if not merged:
        return
    alt = "Latencies: " + "; ".join(
        f"{name} median {_ms(values.quantile(0.5))} ms, P99 {_ms(values.quantile(0.99))} ms"
        for name, values in merged.items()
    )
    curves = {short.upper(): _cumulative_shares(merged[name]) for short, name in _LATENCIES.items() if name in merged}
    yield Figure(
        title="Latencies",
        alt=alt,
        svg=plot("latencies", alt, cumulative(curves, "milliseconds; share of values at or below")),
        table=Table(
            head=("latency, ms", "values", "mean", "median", "P90", "P99", "maximum"),
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


def _cumulative_shares(values: LogHistogram) -> tuple[list[float], list[float]]:
    """Returns latencies in ms, and the share of values up to each of them, at 100 points."""
    shares = np.linspace(0.01, 1.0, 100)
    return [1e3 * max(values.quantile(float(q)), 1e-6) for q in shares], shares.tolist()


def _ms(value_s: float) -> str:
    return decimal(1e3 * value_s, 1)
