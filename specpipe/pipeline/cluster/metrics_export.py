"""Export of metrics to Prometheus through Ray, from workers and the driver. Names: specpipe/telemetry/metrics.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import EngineGauges
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.metrics import METRICS, ROUND_SECONDS, Metric

_INTERVAL_S = 1.0
_BY_NAME = {metric.name: metric for metric in METRICS}
# Value that a round of each bucket is exported with: Ray stores bucket counts and takes their middles for the sum.
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *ROUND_SECONDS), ROUND_SECONDS, strict=False))
_BUCKET_VALUES_S = (*_MIDDLES, 2 * ROUND_SECONDS[-1])


class Value(NamedTuple):
    """The current value of a series: a counter's total, a gauge's value, or a histogram's counts by bucket."""

    name: str
    value: float | Sequence[int]
    label: Mapping[str, str] = {}
    """Labels beside those of the process."""


def worker_values(totals: EngineTotals, gauges: EngineGauges) -> Iterator[Value]:
    """Yields all series of one worker."""
    for reason, rows in totals.finished.items():
        yield Value("specpipe_rows", rows, {"finish_reason": reason})
    yield Value("specpipe_input_tokens", totals.input_tokens)
    yield Value("specpipe_output_tokens", totals.output_tokens)
    yield Value("specpipe_scored_tokens", totals.scored_tokens)
    yield Value("specpipe_rounds", totals.rounds)
    yield Value("specpipe_preemptions", totals.preemptions)
    verified = totals.verified
    yield Value("specpipe_drafts", verified.drafts)
    for name, counts in (
        ("specpipe_draft_tokens", verified.proposed_per_position),
        ("specpipe_reached_tokens", verified.reached_per_position),
        ("specpipe_accepted_tokens", verified.accepted_per_position),
    ):
        yield from (Value(name, count, {"position": str(i)}) for i, count in enumerate(counts))
    for source, found in totals.by_source.items():
        yield Value("specpipe_source_draft_tokens", found.draft_tokens, {"source": source})
        yield Value("specpipe_source_accepted_tokens", found.accepted_tokens, {"source": source})
    yield from (Value("specpipe_engine_seconds", s, {"phase": phase}) for phase, s in totals.phases.items())
    yield Value("specpipe_round_seconds", totals.round_buckets)
    yield Value("specpipe_k", totals.k)
    for name, value in gauges._asdict().items():
        yield Value(f"specpipe_{name}", value)


def run_values(progress: Progress) -> Iterator[Value]:
    """Yields all series of the driver."""
    yield Value("specpipe_run_rows", progress.total_rows)
    yield Value("specpipe_run_rows_done", progress.done_rows)
    yield Value("specpipe_run_rows_failed", progress.failed_rows)
    yield Value("specpipe_run_shards", progress.total_shards)
    yield Value("specpipe_run_shards_published", progress.published_shards)
    yield Value("specpipe_run_shards_failed", progress.failed_shards)
    states = {"ready": progress.workers, "starting": progress.starting, "unplaced": progress.unplaced}
    yield from (Value("specpipe_run_workers", count, {"state": state}) for state, count in states.items())
    yield Value("specpipe_shard_retries", progress.retries)
    yield Value("specpipe_worker_losses", progress.lost_workers)


class Exporter:
    """Exporter of one process's series. Needs a connection to Ray; values reach its endpoint within seconds."""

    def __init__(self, **labels: str) -> None:
        """`labels` of all series: run and worker in a worker, run in the driver."""
        self._labels = labels
        self._instruments: dict[str, Any] = {}
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}

    def export(self, values: Iterator[Value]) -> None:
        """Exports the current values. A counter that fell has restarted from 0: the engine was built again."""
        for name, value, label in values:
            metric = _BY_NAME[name]
            if isinstance(value, Sequence):
                for bucket, count in enumerate(value):
                    for _ in range(int(self._grown(name, {"le": str(bucket)}, count))):
                        self._instrument(metric).observe(_BUCKET_VALUES_S[bucket], self._labels)
            elif metric.kind == "gauge":
                self._instrument(metric).set(value, {**self._labels, **label})
            elif grown := self._grown(name, label, value):
                self._instrument(metric).inc(grown, {**self._labels, **label})

    def _grown(self, name: str, label: Mapping[str, str], total: float) -> float:
        key = (name, tuple(label.values()))
        before = self._last.get(key, 0.0)
        self._last[key] = total
        return total - before if total >= before else total

    def _instrument(self, metric: Metric) -> Any:
        if metric.name not in self._instruments:
            from ray.util import metrics as ray_metrics

            if metric.kind == "histogram":
                made: Any = ray_metrics.Histogram(metric.name, metric.about, list(ROUND_SECONDS), metric.labels)
            else:
                kind = ray_metrics.Counter if metric.kind == "counter" else ray_metrics.Gauge
                made = kind(metric.name, metric.about, metric.labels)
            self._instruments[metric.name] = made
        return self._instruments[metric.name]


def export_every_second(exporter: Exporter, values: Callable[[], Iterator[Value]]) -> None:
    """Exports `values()` every second until the process ends, on its own thread, so that the engine never waits."""

    def export_values() -> None:
        pause = threading.Event()
        while not pause.wait(_INTERVAL_S):
            exporter.export(values())

    threading.Thread(target=export_values, name="metrics", daemon=True).start()
