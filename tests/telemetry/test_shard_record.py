import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
from support.shard_records import shard_table

from specpipe.core import AcceptanceCounts
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_record import ShardRecord, shard_schema, source_fields
from specpipe.telemetry.shard_table import acceptance_by_source, evidence


def record(shard: int, **changes: object) -> ShardRecord:
    base = {
        "run_id": "r",
        "shard": shard, "attempt": 1, "epoch": 1, "worker": "worker-0", "started_at": 10.0, "finished_at": 12.5,
        "rows": 3, "accepted_per_position": (4, 2), "ttft": LogHistogram([0.1, 0.2]),
    }  # fmt: skip
    return ShardRecord.from_dict({**base, **changes, "ttft": LogHistogram([0.1, 0.2]).to_dict()})


def test_footer_json_round_trip_is_lossless() -> None:
    there = record(7, plan_reason="fixed: K=3")
    assert ShardRecord.from_dict(json.loads(json.dumps(there.to_dict()))) == there


def test_unknown_field_is_ignored() -> None:
    assert ShardRecord.from_dict({**record(1).to_dict(), "something_new": 1}) == record(1)


def test_table_is_sorted_by_shard_and_typed(tmp_path) -> None:
    pq.write_table(shard_table([record(2), record(0), record(1)]), tmp_path / "shards.parquet")
    table = pq.read_table(tmp_path / "shards.parquet")
    assert table["shard"].to_pylist() == [0, 1, 2]
    assert table.schema.equals(shard_schema())
    assert table["accepted_per_position"].to_pylist() == [[4, 2]] * 3
    assert LogHistogram.from_dict(table["ttft"][0].as_py()) == LogHistogram([0.1, 0.2])


def test_empty_table_has_the_same_columns() -> None:
    assert shard_table([]).schema.equals(shard_schema())
    assert pa.types.is_list(shard_schema().field("k_histogram").type)


def test_evidence_is_split_by_proposer() -> None:
    mixed = record(
        0,
        rounds=9,
        drafts=10,
        k_histogram=(5, 8, 4),
        reached_per_position=(10, 6),
        accepted_per_position=(6, 2),
        ngram_row_rounds=7,
        ngram_drafts=3,
        ngram_reached_per_position=(3,),
        ngram_accepted_per_position=(1,),
    )
    plain = record(1, k_histogram=(5,), accepted_per_position=())
    found = evidence(shard_table([mixed, plain]))
    draft, ngram = found.verified["draft"], found.verified["ngram"]
    assert (draft.drafts, draft.reached_per_position, draft.accepted_per_position) == (7, (7, 6), (5, 2))
    assert (ngram.drafts, ngram.reached_per_position, ngram.accepted_per_position) == (3, (7,), (1,))
    assert (found.rows, found.costs) == (6, ())
    assert evidence(shard_table([plain])).verified == {}


def test_sources_of_drafts_add_up_to_the_totals() -> None:
    counts = {
        "draft": AcceptanceCounts(drafts=4, proposed_per_position=(4, 4), reached_per_position=(4, 2),
                                  accepted_per_position=(2, 1), draft_tokens=8, accepted_tokens=3),
        "reference": AcceptanceCounts(drafts=2, proposed_per_position=(2, 2, 2), reached_per_position=(2, 2, 1),
                                      accepted_per_position=(2, 1, 1), draft_tokens=6, accepted_tokens=4),
    }  # fmt: skip
    everything = counts["draft"] + counts["reference"]
    fields = {name.name: getattr(everything, name.name) for name in dataclasses.fields(everything)}
    one = record(4, **fields, k_histogram=(0, 4, 0, 2), replay_row_rounds=2, **source_fields(counts))
    table = shard_table([one, record(1, accepted_per_position=())])
    assert acceptance_by_source(table) == counts
    assert {name: found.drafts for name, found in evidence(table).verified.items()} == {"draft": 4}
