import dataclasses
import json

import pytest
from support.shard_records import random_record, shard_table

from specpipe.core import AcceptanceCounts
from specpipe.telemetry import shard_log
from specpipe.telemetry import shard_table as shard_sums
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_log import ShardLog
from specpipe.telemetry.shard_record import ShardRecord, parse_records, shard_schema
from specpipe.telemetry.shard_table import acceptance, by_position, histogram, total

BATCH = 64
COUNT = 150  # more than two batches


def test_table_is_sorted_and_keeps_latest_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_log, "_BATCH", BATCH)
    log, records = ShardLog(), [random_record(shard) for shard in range(COUNT)]
    for record in reversed(records):
        log.add({**record.to_dict(), "attempt": 7})
    monkeypatch.setattr(shard_log, "_WINDOW", 70)
    log.extend(shard_table(records[:80]))
    for record in records[80:]:
        log.add(record.to_dict())
    assert (len(log), 5 in log, COUNT in log) == (COUNT, True, False)
    assert log.table().equals(shard_table(records))


def test_empty_log_has_the_columns() -> None:
    log = ShardLog()
    log.extend(shard_schema().empty_table())
    assert log.table().equals(shard_table([]))


@pytest.mark.slow
def test_packed_records_take_a_kilobyte_each() -> None:
    import pyarrow as pa

    log, before = ShardLog(), pa.total_allocated_bytes()
    for shard in range(512):
        log.add(random_record(shard).to_dict())
    assert (pa.total_allocated_bytes() - before) / 512 < 1200


def test_table_sums_equal_sums_over_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sums, "_WINDOW", 7)
    records = [random_record(shard) for shard in range(40)]
    records[3] = dataclasses.replace(records[3], k_histogram=(), ttft=LogHistogram())
    table = shard_table(records)
    assert acceptance(table) == sum((record.verified for record in records), AcceptanceCounts())
    assert total(table, "output_tokens") == sum(record.output_tokens for record in records)
    assert total(table, "busy_s") == pytest.approx(sum(record.busy_s for record in records))
    assert by_position(table, "k_histogram") == tuple(
        sum(record.k_histogram[k] for record in records if k < len(record.k_histogram)) for k in range(5)
    )
    merged = LogHistogram()
    for record in records:
        merged.merge(record.ttft)
    assert (histogram(table, "ttft").buckets, histogram(table, "ttft").low) == (merged.buckets, merged.low)
    assert histogram(table, "ttft").total == pytest.approx(merged.total)
    assert histogram(shard_table([]), "ttft") == LogHistogram()


def as_json(record: ShardRecord, **changes: object) -> bytes:
    return json.dumps({**record.to_dict(), **changes}, sort_keys=True).encode()


def test_parse_records_gives_the_shard_table() -> None:
    records = [random_record(shard) for shard in range(3)]
    assert parse_records([as_json(record, of_a_later_version=1) for record in records]).equals(shard_table(records))
    assert parse_records([]).equals(shard_table([]))


def test_missing_fields_of_older_versions_get_defaults() -> None:
    older = random_record(4).to_dict()
    del older["itl"], older["k_histogram"]
    expected = dataclasses.replace(random_record(4), itl=LogHistogram(), k_histogram=())
    assert parse_records([json.dumps(older).encode(), as_json(random_record(5))]).equals(
        shard_table([expected, random_record(5)])
    )


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"{}", b"3", b"{}\n{}",
        as_json(random_record(1), attempt={}), as_json(random_record(1), ttft=3), as_json(random_record(1), shard="x"),
        as_json(random_record(1), worker=None), as_json(random_record(1), rows=1.5),
    ],
)  # fmt: skip
def test_invalid_record_raises(text: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_records([text])
