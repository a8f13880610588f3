"""Shard records with random values in every field, and tables of records."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyarrow as pa

from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_record import ShardRecord, shard_schema


def random_record(shard: int) -> ShardRecord:
    """Returns the record of a shard of 500 rows with K = 4; about 2.5 KB of JSON."""
    rng = random.Random(shard)

    def latencies(count: int, mean: float) -> LogHistogram:
        return LogHistogram(rng.lognormvariate(mean, 0.3) for _ in range(count))

    phases = {f"{name}_s": rng.uniform(1, 20) for name in ("prefill", "draft", "verify", "sample", "host")}
    accepted = sorted((rng.randrange(1, 20_000) for _ in range(4)), reverse=True)
    return ShardRecord(
        run_id="feed" * 4, shard=shard, attempt=1, epoch=1, worker=f"worker-{shard % 1000}",
        started_at=1e9 + shard, finished_at=1e9 + shard + 60, rows=500, input_tokens=10_000 + shard,
        output_tokens=100_000 + shard, drafts=30_000, draft_tokens=120_000, accepted_tokens=sum(accepted),
        recovered_tokens=30_000 - accepted[-1], bonus_tokens=accepted[-1], proposed_per_position=(30_000,) * 4,
        reached_per_position=(30_000, *accepted[:3]), accepted_per_position=tuple(accepted),
        k_histogram=(0, 0, 0, 0, 30_000), queue_depth=rng.uniform(10, 1000), plan_proposer="draft",
        plan_reason="goodput: 4 drafts at 64 rows", slots=64, mean_occupancy=rng.uniform(50, 64), rounds=1000,
        round_ms=rng.uniform(10, 20), busy_s=sum(phases.values()), load_s=rng.random(), **phases, tokens_per_s=1234.5,
        ttft=latencies(500, 0), tpot=latencies(500, -4), itl=latencies(500, -4),
    )  # fmt: skip


def shard_table(records: Iterable[ShardRecord]) -> pa.Table:
    """Returns the table of telemetry/shards.parquet, sorted by shard."""
    rows = [record.to_dict() for record in sorted(records, key=lambda record: record.shard)]
    return pa.Table.from_pylist(rows, schema=shard_schema())
