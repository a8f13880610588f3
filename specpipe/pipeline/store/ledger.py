"""Ledger of finished shards, read from the footers of the published parts. It has no file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from specpipe.core import Shard
from specpipe.data.locations import Location, locate
from specpipe.data.parts.part_file import PartFooter, read_footer
from specpipe.pipeline.store.folder import RunFolder
from specpipe.telemetry.shard_log import ShardLog
from specpipe.telemetry.shard_record import ShardRecord, parse_records, shard_schema

_READERS = 16  # footers are small reads, which wait for the network in an object store
_LOCAL_READERS = 3  # reads of a local disk do not wait; more threads only contend
_CHUNK = 1024  # footers parsed in one call, whose fixed cost equals that of many footers


def done_record(folder: RunFolder, shard: Shard, run_id: str) -> ShardRecord | None:
    """Returns the record of a shard's part; None unless the part is valid, complete, and of this run."""
    rows = _done(folder, run_id, [shard]).to_pylist()
    return ShardRecord.from_dict(rows[0]) if rows else None


def read_ledger(folder: RunFolder, shards: Iterable[Shard], run_id: str) -> ShardLog:
    """Returns the records of all finished shards."""
    names = set(folder.names("outputs"))
    candidates = [shard for shard in shards if folder.part_name(shard.index).rpartition("/")[2] in names]
    count = _LOCAL_READERS if locate(folder.path).is_local else _READERS
    size = min(_CHUNK, len(candidates) // count + 1)
    chunks = [candidates[at : at + size] for at in range(0, len(candidates), size)]
    log = ShardLog()
    with ThreadPoolExecutor(count) as readers:
        for table in readers.map(partial(_done, folder, run_id), chunks):
            log.extend(table)
    return log


def _done(folder: RunFolder, run_id: str, shards: Sequence[Shard]) -> pa.Table:
    """Returns the rows of the shard table for the finished shards among `shards`."""
    root = locate(folder.path)
    footers = ((shard, _footer(root.child(folder.part_name(shard.index)), shard)) for shard in shards)
    found = [(shard, footer) for shard, footer in footers if footer is not None]
    try:
        table = parse_records([footer.telemetry_json for _, footer in found])
    except (ValueError, TypeError):
        if len(shards) == 1:
            return shard_schema().empty_table()
        return pa.concat_tables(_done(folder, run_id, [shard]) for shard, _ in found)
    expected = [(run_id, shard.index, shard.rows) for shard, _ in found]
    recorded = zip(*(table[name].to_pylist() for name in ("run_id", "shard", "rows")), strict=True)
    return table.filter(pa.array([left == right for left, right in zip(expected, recorded, strict=True)], pa.bool_()))


def _footer(part: Location, shard: Shard) -> PartFooter | None:
    """Returns the footer of a part with all rows of its shard; None for any other file."""
    try:
        footer = read_footer(part)
    except OSError:  # running an unreadable part again costs time, trusting it could lose rows
        return None
    return footer if footer is not None and footer.rows == shard.rows and footer.shard_hash else None
