"""Shard record: one flat row of telemetry for each published part. docs/telemetry.md describes every field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.json

from specpipe.core import AcceptanceCounts, DraftSource
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


RECORDED_SOURCES: tuple[DraftSource, ...] = ("ngram", "reference", "corpus")
"""Sources of drafts with fields of their own, NAME_drafts and so on; the rest of the totals is the draft model's."""
SOURCE_FIELDS = ("drafts", "proposed_per_position", "reached_per_position", "accepted_per_position")
"""Fields of AcceptanceCounts that are recorded by source."""
FOLLOWED_SHARES = 10
"""Classes of the share of a row's output that was followed."""


def source_fields(by_source: Mapping[DraftSource, AcceptanceCounts]) -> dict[str, Any]:
    """Returns the record's fields by source."""
    found = {source: by_source.get(source, AcceptanceCounts()) for source in RECORDED_SOURCES}
    return {f"{source}_{name}": getattr(counts, name) for source, counts in found.items() for name in SOURCE_FIELDS}


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """Work and seconds of one published shard. Where shards share a round, its seconds are split by rows."""

    run_id: str
    """Digest of the manifest's identity and shards."""
    shard: int
    attempt: int
    """Attempt that published the part, from 1."""
    epoch: int
    """Start of the run that produced it, from 1."""
    worker: str
    started_at: float
    """Unix seconds at which the worker took the shard."""
    finished_at: float
    rows: int
    failed_rows: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was taken from other rows instead of being computed."""
    output_tokens: int = 0
    scored_rows: int = 0
    """Score rows: those whose given continuations were scored."""
    scored_tokens: int = 0
    """Tokens of continuations of score rows."""

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
    """Row-rounds with the n-gram proposer, those without a match included."""
    replay_row_rounds: int = 0
    """Row-rounds with the proposers "replay" and "joined", those without a text to follow included."""
    ngram_drafts: int = 0
    """Drafts from the row's own n-grams. This and the following fields by source are included in the totals above;
    the rest are drafts of the draft model."""
    ngram_proposed_per_position: tuple[int, ...] = ()
    ngram_reached_per_position: tuple[int, ...] = ()
    ngram_accepted_per_position: tuple[int, ...] = ()
    reference_drafts: int = 0
    """Drafts from the row's own earlier answer."""
    reference_proposed_per_position: tuple[int, ...] = ()
    reference_reached_per_position: tuple[int, ...] = ()
    reference_accepted_per_position: tuple[int, ...] = ()
    corpus_drafts: int = 0
    """Drafts from answers of other rows."""
    corpus_proposed_per_position: tuple[int, ...] = ()
    corpus_reached_per_position: tuple[int, ...] = ()
    corpus_accepted_per_position: tuple[int, ...] = ()
    followed_tokens: int = 0
    """Output tokens that were accepted from an earlier answer or the corpus."""
    rows_by_followed_share: tuple[int, ...] = ()
    """Rows with an earlier answer by the tenth of their output that was followed: 10 counts, the last from 90 %."""

    k_histogram: tuple[int, ...] = ()
    """Row-rounds at each K, from 0. Rows that have no drafts whatever K is (`ShardRound.plain_rows`) count at 0."""
    queue_depth: float = 0.0
    """Queue depth of the plan that was sent with the shard."""
    plan_proposer: str = "none"
    """Proposer of that plan."""
    plan_reason: str = ""
    """Reason of that plan."""
    last_plan_reason: str = ""
    """Reason of the plan in force in the shard's last round; the worker updates plans while it runs."""
    last_plan_k: int = 0
    """Largest K of that plan at any occupancy."""
    expected_tokens_per_s: float = 0.0
    """Tokens per second of the whole worker that the plans in force expected, over the rounds of this shard; 0 without
    an estimate."""
    synthetic: bool = False

    slots: int = 0
    mean_occupancy: float = 0.0
    """Mean of the worker's running rows during this shard's rounds, weighted by time."""
    preemptions: int = 0
    """Times that a row lost its slot because KV memory ran out and was recomputed later."""
    uncompiled_forwards: int = 0
    """Forwards whose layers ran uncompiled, because no compiled code fitted."""
    rounds: int = 0
    """Rounds with at least one row of the shard."""
    round_ms: float = 0.0
    """Mean wall time of those rounds without prefill, in milliseconds."""
    busy_s: float = 0.0
    """Engine seconds of this shard's rows: sum of all phases but load."""
    load_s: float = 0.0
    """Seconds of reading and tokenizing, which overlap with the engine."""
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    host_s: float = 0.0
    tokens_per_s: float = 0.0
    """output_tokens / busy_s."""

    ttft: LogHistogram = field(default_factory=LogHistogram)
    """Time to first token: seconds from the first slot to the first token, per row."""
    tpot: LogHistogram = field(default_factory=LogHistogram)
    """Time per output token: (last token - first token) / (output tokens - 1), per row of at least two tokens."""
    itl: LogHistogram = field(default_factory=LogHistogram)
    """Inter-token latency: seconds between emissions of a row. One emission may hold several tokens."""

    @property
    def verified(self) -> AcceptanceCounts:
        """Acceptance counts of the record."""
        return AcceptanceCounts(
            **{name.name: getattr(self, name.name) for name in dataclasses.fields(AcceptanceCounts)},
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: lists for tuples, dictionaries for histograms."""
        out: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, LogHistogram):
                value = value.to_dict()
            out[item.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardRecord:
        """Returns the record of a dictionary from `to_dict` or of a row of the table.

        Unknown fields are ignored; missing or null fields get their defaults. Raises TypeError for a missing field
        without a default.
        """
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
    """Returns the columns of telemetry/shards.parquet, in the order of ShardRecord's fields."""
    hints = get_type_hints(ShardRecord)
    return pa.schema([pa.field(item.name, _ARROW[hints[item.name]]) for item in dataclasses.fields(ShardRecord)])


def parse_records(texts: Sequence[bytes]) -> pa.Table:
    """Returns the shard table of records in JSON, as parts' footers hold them, in the given order.

    Raises ValueError or TypeError where one of them is not a record.
    """
    if not texts:
        return shard_schema().empty_table()
    lines = pa.BufferReader(b"\n".join(texts))
    one_block = pa.json.ReadOptions(use_threads=False, block_size=lines.size() + 1)
    options = pa.json.ParseOptions(explicit_schema=shard_schema(), unexpected_field_behavior="ignore")
    table = pa.json.read_json(lines, read_options=one_block, parse_options=options)
    if table.num_rows != len(texts):
        raise ValueError(f"{len(texts)} texts hold {table.num_rows} records")
    if any(column.null_count for column in table.columns):  # written by an older version, which had fewer fields
        rows = [ShardRecord.from_dict(row).to_dict() for row in table.to_pylist()]
        table = pa.Table.from_pylist(rows, schema=shard_schema())
    return table
