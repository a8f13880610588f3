"""Totals of a run: the content of summary.json, under the names that vLLM's benchmarks use where they have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.core import PHASES, AcceptanceCounts
from specpipe.telemetry.shard_table import acceptance, acceptance_by_source, by_position, histogram, total


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about a run that its shard records do not hold."""

    total_rows: int
    total_shards: int
    failed_shards: Mapping[int, str]
    """Reason of the last failure of each failed shard, by shard index."""
    starts: int
    """Starts of the run, this one included."""
    synthetic: bool
    peak_output_throughput: float
    peak_concurrent_requests: float = 0.0
    """Highest number of running rows of any interval of the timeline; 0 without one."""
    workers: Mapping[str, Mapping[str, Any]]
    """Facts of each worker of this start: device, model_load_s, …"""
    versions: Mapping[str, str]


def covered_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals, in seconds."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


_MIN_DRAFTS = 20  # drafts from which acceptance of the first position is judged
_MIN_FIRST_ACCEPTANCE = 0.25  # below it a draft step costs more than it saves, even with free verification


def _latency(shards: pa.Table, name: str) -> dict[str, float]:
    """Returns mean, median and 99th percentile of a latency, in milliseconds."""
    merged = histogram(shards, name)
    return {
        f"mean_{name}_ms": 1e3 * merged.mean,
        f"median_{name}_ms": 1e3 * merged.quantile(0.5),
        f"p99_{name}_ms": 1e3 * merged.quantile(0.99),
    }


def _speculation(shards: pa.Table) -> dict[str, Any]:
    """Returns the totals of speculative decoding."""
    counts = acceptance(shards)
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
        "spec_decode_emitted_accepted_tokens": total(shards, "emitted_accepted_tokens"),
        "spec_decode_by_source": {source: _source(counts) for source, counts in acceptance_by_source(shards).items()},
        "total_followed_tokens": total(shards, "followed_tokens"),
        "rows_by_followed_share": list(by_position(shards, "rows_by_followed_share")),
        "k_histogram": {str(k): rows for k, rows in enumerate(by_position(shards, "k_histogram")) if rows},
        **_tuning(shards, counts),
    }


def _source(counts: AcceptanceCounts) -> dict[str, Any]:
    """Returns the totals of the drafts of one source."""
    return {
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_length": counts.acceptance_length,
        "num_drafts": counts.drafts,
        "draft_tokens": counts.draft_tokens,
        "accepted_tokens": counts.accepted_tokens,
        "per_position_acceptance_rates": list(counts.unconditional),
        "per_position_conditional_rates": list(counts.conditional),
    }


def _tuning(shards: pa.Table, counts: AcceptanceCounts) -> dict[str, Any]:
    """Returns the last plan's reason, and measured and expected tokens per engine second."""
    busy = total(shards, "busy_s")
    weighted = pc.multiply(shards["expected_tokens_per_s"], shards["busy_s"])
    latest: dict[str, Any] = {}
    if shards.num_rows:
        columns = shards.select(["finished_at", "last_plan_reason", "last_plan_k", "plan_proposer"])
        latest = columns.sort_by([("finished_at", "descending")]).slice(0, 1).to_pylist()[0]
    return {
        "engine_tokens_per_s": total(shards, "output_tokens") / busy if busy else 0.0,
        "expected_tokens_per_s": (pc.sum(weighted).as_py() or 0.0) / busy if busy else 0.0,
        "plan_reason": latest.get("last_plan_reason", ""),
        "useless_draft": _useless(latest, counts),
    }


def _useless(latest: Mapping[str, Any], counts: AcceptanceCounts) -> str:
    """Returns a sentence where goodput has switched speculation off because few drafts were accepted; else ""."""
    off = str(latest.get("last_plan_reason", "")).startswith("goodput") and not latest["last_plan_k"]
    first = counts.conditional[0] if counts.drafts >= _MIN_DRAFTS and counts.conditional else 1.0
    if not off or first >= _MIN_FIRST_ACCEPTANCE:
        return ""
    return (
        f"The draft is useless here: the target accepted {first:.0%} of its first tokens, so goodput decodes plainly. "
        "Use a draft of the target's model family, or set speculation.policy: off"
    )


def _per_worker(shards: pa.Table, facts: RunFacts) -> dict[str, dict[str, Any]]:
    """Returns the totals and facts of each worker, by name."""
    sums = shards.group_by("worker").aggregate([("shard", "count"), *((name, "sum") for name in _WORKERS_SUMS)])
    work = {row["worker"]: row for row in sums.to_pylist()}
    out: dict[str, dict[str, Any]] = {}
    for name in sorted(work.keys() | facts.workers.keys()):
        mine = work.get(name, {})
        values = {field: mine.get(f"{field}_sum", 0) for field in _WORKERS_SUMS}
        speed = values["output_tokens"] / values["busy_s"] if values["busy_s"] else 0.0
        out[name] = {
            "shards": mine.get("shard_count", 0),
            **values,
            "tokens_per_s": speed,
            **facts.workers.get(name, {}),
        }
    return out


_WORKERS_SUMS = ("rows", "output_tokens", "busy_s")


def _max_concurrency(shards: pa.Table) -> int:
    """Returns the slots of all workers of the start that had most."""
    slots: dict[int, dict[str, int]] = {}
    for row in shards.select(["epoch", "worker", "slots"]).to_pylist():
        workers = slots.setdefault(row["epoch"], {})
        workers[row["worker"]] = max(row["slots"], workers.get(row["worker"], 0))
    return max((sum(workers.values()) for workers in slots.values()), default=0)


def _peak_concurrency(shards: pa.Table, facts: RunFacts) -> int:
    """Returns the most rows that ran at once. A run shorter than an interval has no timeline, but shards have means."""
    means: list[float] = shards["mean_occupancy"].to_pylist()
    peak = max([facts.peak_concurrent_requests, *means])
    return ceil(round(peak, 6))  # a quotient of sums: 3 rows may give 3.0000000000000004


def summarise(shards: pa.Table, facts: RunFacts) -> dict[str, Any]:
    """Returns the summary of all published parts of a run, over all of its starts, as JSON values.

    Counts are totals over all parts. `duration_s` is the time during which at least one published shard was running:
    it excludes pauses between starts, model loading and warm-up. Throughputs divide by it.
    """
    failed, done = total(shards, "failed_rows"), total(shards, "rows")
    tokens_in, tokens_out = total(shards, "input_tokens"), total(shards, "output_tokens")
    scored = total(shards, "scored_tokens")
    began, ended = shards["started_at"].to_pylist(), shards["finished_at"].to_pylist()
    duration = covered_seconds(zip(began, ended, strict=True))

    def per_second(amount: float) -> float:
        return amount / duration if duration else 0.0

    return {
        "complete": done == facts.total_rows and not facts.failed_shards,
        "synthetic": facts.synthetic,
        "total_rows": facts.total_rows,
        "completed": done - failed,
        "failed": failed,
        "total_shards": facts.total_shards,
        "published_shards": shards.num_rows,
        "failed_shards": {str(shard): why for shard, why in sorted(facts.failed_shards.items())},
        "starts": facts.starts,
        "total_input_tokens": tokens_in,
        "total_cached_tokens": total(shards, "cached_tokens"),
        "total_output_tokens": tokens_out,
        "total_scored_tokens": scored,
        "duration_s": duration,
        "busy_s": total(shards, "busy_s"),
        "request_throughput": per_second(done - failed),
        "output_throughput": per_second(tokens_out),
        "total_token_throughput": per_second(tokens_in + tokens_out + scored),
        "input_throughput": per_second(tokens_in),
        "scored_throughput": per_second(scored),
        # A run shorter than an interval has no complete one; its peak is at least its mean.
        "peak_output_throughput": max(facts.peak_output_throughput, per_second(tokens_out)),
        "max_concurrency": _max_concurrency(shards),
        "peak_concurrent_requests": _peak_concurrency(shards, facts),
        **_latency(shards, "ttft"),
        **_latency(shards, "tpot"),
        **_latency(shards, "itl"),
        **_speculation(shards),
        "preemptions": total(shards, "preemptions"),
        "uncompiled_forwards": total(shards, "uncompiled_forwards"),
        "phase_seconds": {phase: total(shards, f"{phase}_s") for phase in PHASES},
        "devices": sorted({str(worker["device"]) for worker in facts.workers.values() if "device" in worker}),
        "workers": _per_worker(shards, facts),
        "versions": dict(facts.versions),
    }
