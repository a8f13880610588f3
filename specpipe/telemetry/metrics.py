"""What is exported to Prometheus: every metric, once. docs/operations.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

WORKER = ("run", "worker")
"""Labels of what a worker says. None grows with rows or shards: a run has few workers, positions and reasons."""
RUN = ("run",)
ROUND_SECONDS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0)
"""Upper bounds of the buckets of round times; a last bucket holds what is beyond."""
NAMESPACE = "ray_"
"""Ray puts it before every name, and `_total` behind the names of counters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric as Ray is told about it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str

    @property
    def exported(self) -> str:
        """Its name on the Prometheus endpoint; a histogram's series have _bucket, _count and _sum behind it."""
        return f"{NAMESPACE}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counter(name: str, about: str, *labels: str, of: tuple[str, ...] = WORKER) -> Metric:
    return Metric(name=f"specpipe_{name}", kind="counter", labels=(*of, *labels), about=about)


def _gauge(name: str, about: str, *labels: str, of: tuple[str, ...] = WORKER) -> Metric:
    return Metric(name=f"specpipe_{name}", kind="gauge", labels=(*of, *labels), about=about)


METRICS = (
    _counter("rows", "rows that ended: stop, length, error, or refused before the engine saw them", "finish_reason"),
    _counter("input_tokens", "prompt tokens of the rows that ended"),
    _counter("output_tokens", "tokens that became output"),
    _counter("rounds", "rounds of the engine"),
    _counter("drafts", "rounds of rows in which at least one token was drafted"),
    _counter("draft_tokens", "draft tokens that the target verified, by position from 0", "position"),
    _counter("reached_tokens", "those of them before which everything was accepted", "position"),
    _counter("accepted_tokens", "draft tokens that the target accepted", "position"),
    _counter("engine_seconds", "seconds by phase: prefill, draft, verify, sample, host", "phase"),
    Metric(name="specpipe_round_seconds", kind="histogram", labels=WORKER, about="seconds of a round, without prefill"),
    _gauge("k", "K of the latest round"),
    _gauge("queue_depth", "queue depth of the ruling plan"),
    _gauge("running_rows", "rows that hold a slot: the occupancy"),
    _gauge("waiting_rows", "rows in the worker without a slot"),
    _gauge("slots", "rows that the worker can run at once"),
    _gauge("kv_pages_used", "KV pages that rows hold"),
    _gauge("kv_pages", "KV pages that there are"),
    _counter("preemptions", "rows that gave their KV pages back, and are computed again later"),
    _gauge("step_seconds", "seconds that the present step has taken; 0 while idle. Grows when a device hangs"),
    _gauge("run_rows", "rows of the whole run", of=RUN),
    _gauge("run_rows_done", "rows published, and rows finished in shards that still run", of=RUN),
    _gauge("run_rows_failed", "published rows that have an error", of=RUN),
    _gauge("run_shards", "shards of the whole run", of=RUN),
    _gauge("run_shards_published", "shards whose part is there", of=RUN),
    _gauge("run_shards_failed", "shards that were given up", of=RUN),
    _gauge("run_workers", "workers by state: ready, starting or unplaced", "state", of=RUN),
    _counter("shard_retries", "attempts at shards after the first", of=RUN),
    _counter("worker_losses", "workers that died or hung", of=RUN),
)


def run_label(name: str, run_id: str) -> str:
    """The label `run`: the job's name and the beginning of the run's id, the same for every start of a run."""
    return f"{name}-{run_id[:8]}"
