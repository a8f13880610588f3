"""Records of a run's shards, in compressed Arrow batches to save memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from specpipe.telemetry.shard_record import shard_schema

_BATCH = 512  # records kept as dictionaries; each takes some 10 KB so, and 1 KB when packed
_WINDOW = 8192  # rows of a table that are packed or sorted at once
_PACKED = pa.ipc.IpcWriteOptions(compression="zstd")


class ShardLog:
    """One record for each shard: the latest that was added."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        """Position of each shard's latest record among all records ever added."""
        self._added = 0
        self._packed: list[pa.Buffer] = []
        self._ends: list[int] = []
        """Position after the last record of each batch."""
        self._open: list[Mapping[str, Any]] = []

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, shard: int) -> bool:
        return shard in self._place

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds one record, as returned by ShardRecord.to_dict."""
        self._index([record["shard"]])
        self._open.append(record)
        if len(self._open) == _BATCH:
            self._pack_open()

    def extend(self, table: pa.Table) -> None:
        """Adds the rows of a shard table."""
        self._pack_open()
        self._index(table["shard"].to_pylist())
        for at in range(0, table.num_rows, _WINDOW):
            self._pack(table.slice(at, _WINDOW))

    def table(self) -> pa.Table:
        """Returns the table of telemetry/shards.parquet: one row for each shard, sorted by shard index."""
        self._pack_open()
        order = np.array([self._place[shard] for shard in sorted(self._place)], np.int64)
        if not len(order):
            # `empty_table` would import pandas, where it is installed: a new run's driver has no other use for it.
            return pa.Table.from_batches([], schema=shard_schema())
        return pa.concat_tables(self._gather(order[at : at + _WINDOW]) for at in range(0, len(order), _WINDOW))

    def failed_rows(self) -> dict[int, int]:
        """Returns the number of failed rows by shard, for shards that have some."""
        shards = self.table()
        failed = shards.filter(pc.greater(shards["failed_rows"], 0))
        return dict(zip(failed["shard"].to_pylist(), failed["failed_rows"].to_pylist(), strict=True))

    def _gather(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """Returns the rows at `positions`, int64 [n].

        Shards end nearly in order, so a few batches hold the rows of one window.
        """
        batches = np.searchsorted(self._ends, positions, side="right")
        wanted, which = np.unique(batches, return_inverse=True)
        tables = [pa.ipc.open_stream(self._packed[batch]).read_all() for batch in wanted]
        starts = np.array([self._ends[batch] for batch in wanted], np.int64) - [table.num_rows for table in tables]
        before = np.cumsum([0, *(table.num_rows for table in tables[:-1])])
        return pa.concat_tables(tables).combine_chunks().take(positions - starts[which] + before[which])

    def _index(self, shards: list[int]) -> None:
        """Records the positions of records that are about to be added."""
        for shard in shards:
            self._place[shard] = self._added
            self._added += 1

    def _pack_open(self) -> None:
        """Packs the records that are still dictionaries."""
        if self._open:
            self._pack(pa.Table.from_pylist(self._open, schema=shard_schema()))
            self._open = []

    def _pack(self, table: pa.Table) -> None:
        """Appends a table as one compressed batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_PACKED) as stream:
            stream.write_table(table)
        self._packed.append(sink.getvalue())
        self._ends.append((self._ends[-1] if self._ends else 0) + table.num_rows)
