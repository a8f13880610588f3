"""The timeline's segment of one start, published whole again and again as it grows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import RunFolder
from specpipe.telemetry.timeline_interval import TimelineInterval, peak_tokens_per_s, timeline_batch, timeline_schema

log = logging.getLogger(__name__)
_FIRST_FLUSH_S = 30.0
_GROWTH = 1.25  # each flush rewrites the segment: waiting in proportion to its age keeps the sum linear


def parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


class TimelineFile:
    """Collects the samples of all workers. What a crash loses is the last quarter of a segment at most."""

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        self._folder = folder
        self._name = folder.timeline_name(epoch)
        self._batches: list[pa.RecordBatch] = []
        self._began = time.monotonic()
        self._next_flush = self._began + _FIRST_FLUSH_S

    def add(self, samples: Sequence[TimelineInterval]) -> None:
        self._batches.append(timeline_batch(samples))
        now = time.monotonic()
        if now >= self._next_flush:
            self._next_flush = self._began + (now - self._began) * _GROWTH
            try:
                self.publish()
            except OutputError as error:  # a disk that is full now may have room at the end
                log.warning("the timeline could not be written: %s", error)

    def publish(self) -> None:
        """Write all that is known; nothing at all if no worker has said anything."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, schema=timeline_schema())
            self._folder.publish(self._name, parquet_bytes(table))


def read_timelines(folder: RunFolder, columns: Sequence[str] | None = None) -> list[pa.Table]:
    """Every start's segment, in order. A damaged one is passed over: it costs curves, and must not hold up a start."""
    tables = []
    for name in folder.names("telemetry"):
        if name.startswith("timeline-") and (data := folder.read(f"telemetry/{name}")) is not None:
            try:
                tables.append(pq.read_table(pa.BufferReader(data), columns=columns))
            except (pa.ArrowInvalid, KeyError) as error:
                log.warning("%s is no timeline, and is passed over: %s", folder.file(f"telemetry/{name}"), error)
    return tables


def peak_of(folder: RunFolder) -> float:
    """Best output tokens/s of any interval of any start, over all workers."""
    return peak_tokens_per_s(read_timelines(folder, ["second", "tokens_per_s"]))
