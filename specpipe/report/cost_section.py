"""What a run cost, and what it gave for that."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.report.elements import DASH, ReportSection, count, fixed, percent, seconds
from specpipe.report.run_source import RunSource
from specpipe.telemetry.shard_table import total


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds of workers. `held`: from a worker's first shard to its last, per start; `busy`: the engine's own."""

    held_s: float
    busy_s: float
    output_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Output tokens for each second that a worker was held."""
        return self.output_tokens / self.held_s if self.held_s else 0.0


def cost_of(shards: pa.Table) -> Cost:
    """shards: of telemetry.shard_schema."""
    held = shards.group_by(["epoch", "worker"]).aggregate([("started_at", "min"), ("finished_at", "max")])
    spans = pc.subtract(held["finished_at_max"], held["started_at_min"])
    return Cost(
        held_s=float(pc.sum(spans).as_py() or 0.0),
        busy_s=total(shards, "busy_s"),
        output_tokens=total(shards, "output_tokens"),
    )


def what_it_cost(source: RunSource) -> ReportSection:
    cost, summary, word = cost_of(source.shards), source.summary, source.device_word
    busy = f" ({percent(cost.busy_s / cost.held_s)})" if cost.held_s else ""
    return ReportSection(
        title="What it cost",
        intro=f"Held: from a worker's first shard to its last, in every start; loading models and warm-up are not in "
        f"it. Busy: the engine's own time. The run took {seconds(summary['duration_s'])} of wall time.",
        facts=[
            (f"{word}-seconds held", fixed(cost.held_s, 1)),
            (f"{word}-seconds busy", f"{fixed(cost.busy_s, 1)}{busy}"),
            (f"Output tokens per {word}-second", fixed(cost.tokens_per_second, 1)),
            (f"{word}-seconds per million output tokens", _per_million(cost)),
            ("Input tokens", count(summary["total_input_tokens"])),
            ("Output tokens", count(summary["total_output_tokens"])),
        ],
    )


def _per_million(cost: Cost) -> str:
    return count(1e6 * cost.held_s / cost.output_tokens) if cost.output_tokens else DASH
