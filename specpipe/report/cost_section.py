"""Section on the cost of a run: worker seconds and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.report.elements import ReportSection
from specpipe.report.number_format import DASH, count, decimal, duration, percent
from specpipe.report.run_source import RunSource
from specpipe.telemetry.shard_table import total


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Worker seconds of a run, and the tokens generated in them."""

    held_s: float
    """Seconds from the first to the last shard of each worker, summed over workers and starts."""
    busy_s: float
    """Seconds in which engines worked."""
    output_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second held."""
        return self.output_tokens / self.held_s if self.held_s else 0.0


def cost_of(shards: pa.Table) -> Cost:
    """Returns the cost of published shards, a table with the schema of telemetry/shards.parquet."""
    held = shards.group_by(["epoch", "worker"]).aggregate([("started_at", "min"), ("finished_at", "max")])
    spans = pc.subtract(held["finished_at_max"], held["started_at_min"])
    return Cost(
        held_s=float(pc.sum(spans).as_py() or 0.0),
        busy_s=total(shards, "busy_s"),
        output_tokens=total(shards, "output_tokens"),
    )


def cost_section(source: RunSource) -> ReportSection:
    """Returns the section on worker seconds and tokens."""
    cost, summary, noun = cost_of(source.shards), source.summary, source.device_noun
    busy = f" ({percent(cost.busy_s / cost.held_s)})" if cost.held_s else ""
    return ReportSection(
        title="Cost",
        intro=f"Held: time from the first to the last shard of each {noun} in each start, without loading models and "
        f"warm-up. Busy: time in which the engine worked. The run took {duration(summary['duration_s'])}.",
        facts=[
            (f"{noun}-seconds held", decimal(cost.held_s, 1)),
            (f"{noun}-seconds busy", f"{decimal(cost.busy_s, 1)}{busy}"),
            (f"Output tokens per {noun}-second", decimal(cost.tokens_per_second, 1)),
            (f"{noun}-seconds per million output tokens", _per_million(cost)),
            ("Input tokens", count(summary["total_input_tokens"])),
            ("Input tokens from shared prefixes", count(summary["total_cached_tokens"])),
            ("Seconds of prefill that they saved, about", _saved_prefill(summary)),
            ("Output tokens", count(summary["total_output_tokens"])),
        ],
    )


def _saved_prefill(summary: Mapping[str, Any]) -> str:
    """Returns the seconds that shared prompt tokens would have taken at the mean rate of those that were computed."""
    cached, total_tokens = summary["total_cached_tokens"], summary["total_input_tokens"]
    computed = total_tokens - cached
    return decimal(summary["phase_seconds"]["prefill"] * cached / computed, 1) if cached and computed else DASH


def _per_million(cost: Cost) -> str:
    return count(1e6 * cost.held_s / cost.output_tokens) if cost.output_tokens else DASH
