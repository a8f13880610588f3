"""Table of all Prometheus metrics, which docs/operations.md shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

WORKER = ("run", "worker")
"""Labels of a worker's metrics. Their number does not grow with rows or shards."""
RUN = ("run",)
"""Labels of the driver's metrics."""
ROUND_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0)
"""Upper bounds of the buckets of round times, in seconds; a last bucket holds longer rounds."""
NAMESPACE = "ray_"
"""Prefix that Ray adds to every name. Ray also adds the suffix `_total` to counters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric as it is registered with Ray."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str

    @property
    def exported(self) -> str:
        """Name on the Prometheus endpoint. The series of a histogram add _bucket, _count and _sum."""
        return f"{NAMESPACE}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counter(name: str, about: str, *labels: str, of: tuple[str, ...] = WORKER) -> Metric:
    """Returns a counter; `labels` are added to those of a worker or run."""
    return Metric(name=f"specpipe_{name}", kind="counter", labels=(*of, *labels), about=about)


def _gauge(name: str, about: str, *labels: str, of: tuple[str, ...] = WORKER) -> Metric:
    """Returns a gauge; `labels` are added to those of a worker or run."""
    return Metric(name=f"specpipe_{name}", kind="gauge", labels=(*of, *labels), about=about)


METRICS = (
    _counter("rows", "rows that ended: stop, length, scored, error, or rejected before the engine", "finish_reason"),
    _counter("input_tokens", "prompt tokens of the rows that ended"),
    _counter("output_tokens", "tokens that became output"),
    _counter("scored_tokens", "tokens of given texts whose log-probabilities were computed"),
    _counter("rounds", "rounds of the engine"),
    _counter("drafts", "rounds of rows in which at least one token was drafted"),
    _counter("draft_tokens", "draft tokens that the target verified, by position from 0", "position"),
    _counter("reached_tokens", "draft tokens whose predecessors in the round were all accepted", "position"),
    _counter("accepted_tokens", "draft tokens that the target accepted", "position"),
    _counter("source_draft_tokens", "draft tokens by source: draft, ngram, reference, corpus", "source"),
    _counter("source_accepted_tokens", "accepted draft tokens by source", "source"),
    _counter("engine_seconds", "seconds by phase: prefill, draft, verify, sample, host", "phase"),
    Metric(name="specpipe_round_seconds", kind="histogram", labels=WORKER, about="seconds of a round, without prefill"),
    _gauge("k", "K of the latest round"),
    _gauge("queue_depth", "queue depth of the plan in force"),
    _gauge("running_rows", "rows that hold a slot: the occupancy"),
    _gauge("waiting_rows", "rows in the worker without a slot"),
    _gauge("slots", "rows that the worker can run at once"),
    _gauge("kv_pages_used", "KV pages in use"),
    _gauge("kv_pages", "KV pages in total"),
    _counter("preemptions", "rows that lost their KV pages and are computed again later"),
    _gauge("step_seconds", "age of the current step in seconds; 0 while idle. Grows while a device hangs"),
    _gauge("run_rows", "rows of the whole run", of=RUN),
    _gauge("run_rows_done", "rows published, and rows finished in shards that still run", of=RUN),
    _gauge("run_rows_failed", "published rows that have an error", of=RUN),
    _gauge("run_shards", "shards of the whole run", of=RUN),
    _gauge("run_shards_published", "shards whose part is published", of=RUN),
    _gauge("run_shards_failed", "shards whose every attempt failed", of=RUN),
    _gauge("run_workers", "workers by state: ready, starting or unplaced", "state", of=RUN),
    _counter("shard_retries", "attempts at shards after the first", of=RUN),
    _counter("worker_losses", "workers that died or hung", of=RUN),
)


def run_label(name: str, run_id: str) -> str:
    """Returns the label `run`: the job's name and the first 8 digits of the run's id, equal for all starts of a run."""
    return f"{name}-{run_id[:8]}"
