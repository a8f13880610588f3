"""summary.json: the totals of a run, under the names that the field uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpipe.core import PHASES, AcceptanceCounts
from specpipe.telemetry.histogram import LogHistogram
from specpipe.telemetry.record import ShardRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What the records alone cannot say about a run."""

    total_rows: int
    total_shards: int
    failed_shards: Mapping[int, str]
    """Shard number -> why no attempt could finish it."""
    starts: int
    """How often the run was started, this time included."""
    synthetic: bool
    peak_output_throughput: float
    workers: Mapping[str, Mapping[str, Any]]
    """Per worker of this start: device, model_load_s, …"""
    versions: Mapping[str, str]


def covered_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals: time during which at least one of them was open."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _latency(name: str, histograms: Iterable[LogHistogram]) -> dict[str, float]:
    merged = LogHistogram()
    for histogram in histograms:
        merged.merge(histogram)
    return {
        f"mean_{name}_ms": 1e3 * merged.mean,
        f"median_{name}_ms": 1e3 * merged.quantile(0.5),
        f"p99_{name}_ms": 1e3 * merged.quantile(0.99),
    }


def _speculation(records: Sequence[ShardRecord]) -> dict[str, Any]:
    counts = AcceptanceCounts()
    k_rows: dict[int, int] = {}
    for record in records:
        counts += record.verified
        for k, rows in enumerate(record.k_histogram):
            k_rows[k] = k_rows.get(k, 0) + rows
    return {
        "spec_decode_acceptance_rate": counts.acceptance_rate,
        "spec_decode_acceptance_length": counts.acceptance_length,
        "spec_decode_num_drafts": counts.drafts,
        "spec_decode_draft_tokens": counts.draft_tokens,
        "spec_decode_accepted_tokens": counts.accepted_tokens,
        "spec_decode_recovered_tokens": counts.recovered_tokens,
        "spec_decode_bonus_tokens": counts.bonus_tokens,
        "spec_decode_per_position_acceptance_rates": list(counts.unconditional),
        "spec_decode_per_position_conditional_rates": list(counts.conditional),
        "spec_decode_emitted_accepted_tokens": sum(record.emitted_accepted_tokens for record in records),
        "k_histogram": {str(k): rows for k, rows in sorted(k_rows.items()) if rows},
    }


def _phases(records: Sequence[ShardRecord]) -> dict[str, float]:
    return {phase: float(sum(getattr(record, f"{phase}_s") for record in records)) for phase in PHASES}


def _per_worker(records: Sequence[ShardRecord], facts: RunFacts) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for name in sorted({record.worker for record in records} | set(facts.workers)):
        mine = [record for record in records if record.worker == name]
        busy = sum(record.busy_s for record in mine)
        tokens = sum(record.output_tokens for record in mine)
        out[name] = {
            "shards": len(mine),
            "rows": sum(record.rows for record in mine),
            "output_tokens": tokens,
            "busy_s": busy,
            "tokens_per_s": tokens / busy if busy else 0.0,
            **facts.workers.get(name, {}),
        }
    return out


def summarise(records: Sequence[ShardRecord], facts: RunFacts) -> dict[str, Any]:
    """All published parts of a run, over however many starts, as one dictionary for JSON.

    Counts are totals over all parts. `duration_s` is the time during which at least one published shard was
    running, so pauses between starts, model loading and warm-up are not in it; throughputs divide by it.
    """
    failed = sum(record.failed_rows for record in records)
    done = sum(record.rows for record in records)
    tokens_in = sum(record.input_tokens for record in records)
    tokens_out = sum(record.output_tokens for record in records)
    duration = covered_seconds((record.started_at, record.finished_at) for record in records)

    def per_second(amount: float) -> float:
        return amount / duration if duration else 0.0

    return {
        "complete": done == facts.total_rows and not facts.failed_shards,
        "synthetic": facts.synthetic,
        "total_rows": facts.total_rows,
        "completed": done - failed,
        "failed": failed,
        "total_shards": facts.total_shards,
        "published_shards": len(records),
        "failed_shards": {str(shard): why for shard, why in sorted(facts.failed_shards.items())},
        "starts": facts.starts,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "duration_s": duration,
        "busy_s": sum(record.busy_s for record in records),
        "request_throughput": per_second(done - failed),
        "output_throughput": per_second(tokens_out),
        "total_token_throughput": per_second(tokens_in + tokens_out),
        # A run shorter than an interval fills none of them; its peak is no less than its mean all the same.
        "peak_output_throughput": max(facts.peak_output_throughput, per_second(tokens_out)),
        **_latency("ttft", (record.ttft for record in records)),
        **_latency("tpot", (record.tpot for record in records)),
        **_latency("itl", (record.itl for record in records)),
        **_speculation(records),
        "preemptions": sum(record.preemptions for record in records),
        "phase_seconds": _phases(records),
        "devices": sorted({str(worker["device"]) for worker in facts.workers.values() if "device" in worker}),
        "workers": _per_worker(records, facts),
        "versions": dict(facts.versions),
    }
