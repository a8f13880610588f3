"""The ledger: which shards are done. There is no file of it; the published parts themselves say so."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from specpipe.core import Shard
from specpipe.data.publish import read_part_footer
from specpipe.pipeline.folder import RunFolder
from specpipe.telemetry.record import ShardRecord

_READERS = 16  # footers are small reads, and on an object store each waits for the network


def done_record(folder: RunFolder, shard: Shard, run_id: str) -> ShardRecord | None:
    """The record of a shard's part; None unless the part is whole, has all of its rows, and belongs to this run."""
    try:
        footer = read_part_footer(folder.file(folder.part_name(shard.index)))
    except OSError:  # thrift that does not parse, or no file: to run it again costs time, to trust it costs rows
        return None
    if footer is None or footer.rows != shard.rows or not footer.shard_hash:
        return None
    try:
        record = ShardRecord.from_dict(footer.telemetry)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    fits = record.run_id == run_id and record.shard == shard.index and record.rows == shard.rows
    return record if fits else None


def read_ledger(folder: RunFolder, shards: Iterable[Shard], run_id: str) -> dict[int, ShardRecord]:
    """Records of all shards that are done, by shard number."""
    there = set(folder.names("outputs"))
    candidates = [shard for shard in shards if folder.part_name(shard.index).rpartition("/")[2] in there]
    with ThreadPoolExecutor(_READERS) as readers:
        records = readers.map(lambda shard: done_record(folder, shard, run_id), candidates)
        return {record.shard: record for record in records if record is not None}
