"""The shard record: one flat row of telemetry per published part. docs/telemetry.md describes every field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.json

from specpipe.core import AcceptanceCounts
from specpipe.telemetry.log_histogram import LogHistogram

_HISTOGRAM = pa.struct(
    [
        ("bucket", pa.list_(pa.int32())),
        ("rows", pa.list_(pa.int64())),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
    ]
)
_ARROW: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    tuple[int, ...]: pa.list_(pa.int64()),
    LogHistogram: _HISTOGRAM,
}


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What one published shard did and cost. Seconds are attributed by rows where shards share a round."""

    run_id: str
    """The manifest's: digest of identity and shards."""
    shard: int
    attempt: int
    """1 for the first."""
    epoch: int
    """Which start of the run produced it, from 1."""
    worker: str
    started_at: float
    """Unix seconds at which the worker took the shard."""
    finished_at: float
    rows: int
    failed_rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    recovered_tokens: int = 0
    bonus_tokens: int = 0
    proposed_per_position: tuple[int, ...] = ()
    reached_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    emitted_accepted_tokens: int = 0
    """Accepted draft tokens that became output."""
    ngram_row_rounds: int = 0
    """Row-rounds in which n-grams drafted, those that found none included."""
    ngram_drafts: int = 0
    """Those of `drafts` that n-grams made, as the following."""
    ngram_reached_per_position: tuple[int, ...] = ()
    ngram_accepted_per_position: tuple[int, ...] = ()

    k_histogram: tuple[int, ...] = ()
    """Row-rounds at each K, from 0."""
    queue_depth: float = 0.0
    """Of the plan that was issued with the shard."""
    plan_proposer: str = "none"
    plan_reason: str = ""
    last_plan_reason: str = ""
    """Of the plan that ruled the shard's last round: the worker has learnt since the first one."""
    last_plan_k: int = 0
    """Widest K of that plan, whatever the occupancy."""
    expected_tokens_per_s: float = 0.0
    """What the ruling plans expected of the whole worker, over the rounds of this shard; 0 where they did not say."""
    synthetic: bool = False

    slots: int = 0
    mean_occupancy: float = 0.0
    """Rows of the whole worker that ran beside this shard's, weighted by time."""
    preemptions: int = 0
    """Times that a row lost its slot for want of KV memory and was recomputed later."""
    rounds: int = 0
    """Rounds that at least one row of the shard took part in."""
    round_ms: float = 0.0
    """Mean wall time of those rounds, prefill excluded."""
    busy_s: float = 0.0
    """Engine seconds of this shard's rows: all phases but load."""
    load_s: float = 0.0
    """Reading and tokenizing; overlaps with the engine."""
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    host_s: float = 0.0
    tokens_per_s: float = 0.0
    """output_tokens / busy_s."""

    ttft: LogHistogram = field(default_factory=LogHistogram)
    """Seconds from getting a slot to the first token, a row."""
    tpot: LogHistogram = field(default_factory=LogHistogram)
    """(last token - first token) / (output tokens - 1), a row of at least two tokens."""
    itl: LogHistogram = field(default_factory=LogHistogram)
    """Seconds between emissions of a row; one emission of a speculative round holds several tokens."""

    @property
    def verified(self) -> AcceptanceCounts:
        return AcceptanceCounts(
            **{name.name: getattr(self, name.name) for name in dataclasses.fields(AcceptanceCounts)},
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: lists for tuples, a dictionary for a histogram."""
        out: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, LogHistogram):
                value = value.to_dict()
            out[item.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardRecord:
        """The inverse of `to_dict`, and of a row of the table. Fields that it does not know are left out, those that
        are missing or null get their defaults; TypeError for a missing key field."""
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            value = data.get(item.name)
            if value is None:
                continue
            if item.name in ("ttft", "tpot", "itl"):
                value = LogHistogram.from_dict(value)
            values[item.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def shard_schema() -> pa.Schema:
    """The columns of telemetry/shards.parquet, in the order of ShardRecord's fields."""
    hints = get_type_hints(ShardRecord)
    return pa.schema([pa.field(item.name, _ARROW[hints[item.name]]) for item in dataclasses.fields(ShardRecord)])


def parse_records(texts: Sequence[bytes]) -> pa.Table:
    """Records as parts' footers hold them, JSON of `to_dict`, as rows of the same table, in the order given.

    Raises ValueError or TypeError where one of them is no record.
    """
    if not texts:
        return shard_schema().empty_table()
    lines = pa.BufferReader(b"\n".join(texts))
    one_block = pa.json.ReadOptions(use_threads=False, block_size=lines.size() + 1)
    ours = pa.json.ParseOptions(explicit_schema=shard_schema(), unexpected_field_behavior="ignore")
    table = pa.json.read_json(lines, read_options=one_block, parse_options=ours)
    if table.num_rows != len(texts):
        raise ValueError(f"{len(texts)} texts hold {table.num_rows} records")
    if any(column.null_count for column in table.columns):  # by an older version, which had fewer fields
        rows = [ShardRecord.from_dict(row).to_dict() for row in table.to_pylist()]
        table = pa.Table.from_pylist(rows, schema=shard_schema())
    return table
