"""The ledger: which shards are done. There is no file of it; the published parts themselves say so."""

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

_READERS = 16  # footers are small reads, and on an object store each waits for the network
_LOCAL_READERS = 3  # a local disk makes nobody wait: more would only get into each other's way
_CHUNK = 1024  # footers parsed at once: a call costs as much as many of them


def done_record(folder: RunFolder, shard: Shard, run_id: str) -> ShardRecord | None:
    """The record of a shard's part; None unless the part is whole, has all of its rows, and belongs to this run."""
    rows = _done(folder, run_id, [shard]).to_pylist()
    return ShardRecord.from_dict(rows[0]) if rows else None


def read_ledger(folder: RunFolder, shards: Iterable[Shard], run_id: str) -> ShardLog:
    """Records of all shards that are done."""
    there = set(folder.names("outputs"))
    candidates = [shard for shard in shards if folder.part_name(shard.index).rpartition("/")[2] in there]
    count = _LOCAL_READERS if locate(folder.path).is_local else _READERS
    size = min(_CHUNK, len(candidates) // count + 1)
    chunks = [candidates[at : at + size] for at in range(0, len(candidates), size)]
    log = ShardLog()
    with ThreadPoolExecutor(count) as readers:
        for table in readers.map(partial(_done, folder, run_id), chunks):
            log.extend(table)
    return log


def _done(folder: RunFolder, run_id: str, shards: Sequence[Shard]) -> pa.Table:
    """Rows of the shard table, of those shards that are done."""
    root = locate(folder.path)
    footers = ((shard, _footer(root.child(folder.part_name(shard.index)), shard)) for shard in shards)
    found = [(shard, footer) for shard, footer in footers if footer is not None]
    try:
        table = parse_records([footer.telemetry_json for _, footer in found])
    except (ValueError, TypeError):
        if len(shards) == 1:
            return shard_schema().empty_table()
        return pa.concat_tables(_done(folder, run_id, [shard]) for shard, _ in found)
    ours = [(run_id, shard.index, shard.rows) for shard, _ in found]
    said = zip(*(table[name].to_pylist() for name in ("run_id", "shard", "rows")), strict=True)
    return table.filter(pa.array([own == says for own, says in zip(ours, said, strict=True)], pa.bool_()))


def _footer(part: Location, shard: Shard) -> PartFooter | None:
    try:
        footer = read_footer(part)
    except OSError:  # it cannot be read: to run it again costs time, to trust it costs rows
        return None
    return footer if footer is not None and footer.rows == shard.rows and footer.shard_hash else None
