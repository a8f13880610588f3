"""The records of a run's shards in little memory: Arrow batches, compressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from specpipe.telemetry.shard_record import shard_schema

_BATCH = 512  # records in the open; each is some 10 KB as a dictionary, and 1 KB when packed
_WINDOW = 8192  # rows of the table that are put in order at once
_PACKED = pa.ipc.IpcWriteOptions(compression="zstd")


class ShardLog:
    """One record a shard: the latest that was added."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        """Shard -> position of its latest record among all that were ever added."""
        self._added = 0
        self._packed: list[pa.Buffer] = []
        self._ends: list[int] = []
        """Of each batch: the position after its last record."""
        self._open: list[Mapping[str, Any]] = []

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, shard: int) -> bool:
        return shard in self._place

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one record, as ShardRecord.to_dict gives it."""
        self._remember([record["shard"]])
        self._open.append(record)
        if len(self._open) == _BATCH:
            self._pack_open()

    def extend(self, table: pa.Table) -> None:
        """Take in rows of a shard table."""
        self._pack_open()
        if table.num_rows:
            self._remember(table["shard"].to_pylist())
            self._pack(table)

    def table(self) -> pa.Table:
        """The table of telemetry/shards.parquet: one row a shard, by shard number."""
        self._pack_open()
        order = np.array([self._place[shard] for shard in sorted(self._place)], np.int64)
        if not len(order):
            return shard_schema().empty_table()
        return pa.concat_tables(self._gather(order[at : at + _WINDOW]) for at in range(0, len(order), _WINDOW))

    def failed_rows(self) -> dict[int, int]:
        """Returns the number of failed rows by shard, for shards that have some."""
        shards = self.table()
        failed = shards.filter(pc.greater(shards["failed_rows"], 0))
        return dict(zip(failed["shard"].to_pylist(), failed["failed_rows"].to_pylist(), strict=True))

    def _gather(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """Rows by position. Shards end nearly in order, so that a few batches hold all of them."""
        batches = np.searchsorted(self._ends, positions, side="right")
        wanted, which = np.unique(batches, return_inverse=True)
        tables = [pa.ipc.open_stream(self._packed[batch]).read_all() for batch in wanted]
        starts = np.array([self._ends[batch] for batch in wanted], np.int64) - [table.num_rows for table in tables]
        before = np.cumsum([0, *(table.num_rows for table in tables[:-1])])
        return pa.concat_tables(tables).combine_chunks().take(positions - starts[which] + before[which])

    def _remember(self, shards: list[int]) -> None:
        for shard in shards:
            self._place[shard] = self._added
            self._added += 1

    def _pack_open(self) -> None:
        if self._open:
            self._pack(pa.Table.from_pylist(self._open, schema=shard_schema()))
            self._open = []

    def _pack(self, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_PACKED) as stream:
            stream.write_table(table)
        self._packed.append(sink.getvalue())
        self._ends.append((self._ends[-1] if self._ends else 0) + table.num_rows)
