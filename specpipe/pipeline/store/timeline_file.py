"""Timeline file of one start, published whole at growing intervals."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import RunFolder
from specpipe.telemetry.timeline_interval import TimelineInterval, peak, timeline_batch, timeline_schema

log = logging.getLogger(__name__)
_FIRST_FLUSH_S = 30.0
_GROWTH = 1.25  # each flush rewrites the file; intervals proportional to its age keep the total work linear


def parquet_bytes(table: pa.Table) -> bytes:
    """Returns a table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


class TimelineFile:
    """Collects the intervals of all workers. A crash loses at most the last quarter of the file."""

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        self._folder = folder
        self._name = folder.timeline_name(epoch)
        self._batches: list[pa.RecordBatch] = []
        self._began = time.monotonic()
        self._next_flush = self._began + _FIRST_FLUSH_S

    def add(self, intervals: Sequence[TimelineInterval]) -> None:
        """Stores finished intervals, and publishes the file when it is due."""
        self._batches.append(timeline_batch(intervals))
        now = time.monotonic()
        if now >= self._next_flush:
            self._next_flush = self._began + (now - self._began) * _GROWTH
            try:
                self.publish()
            except OutputError as error:  # a full disk may have space again at the end
                log.warning("the timeline could not be written: %s", error)

    def publish(self) -> None:
        """Publishes all intervals so far; no file without intervals."""
        if self._batches:
            table = pa.Table.from_batches(self._batches, schema=timeline_schema())
            self._folder.publish(self._name, parquet_bytes(table))


def read_timelines(folder: RunFolder, columns: Sequence[str] | None = None) -> list[pa.Table]:
    """Returns the timeline of every start, in order. Damaged files are skipped: only plots depend on them."""
    tables = []
    for name in folder.names("telemetry"):
        if name.startswith("timeline-") and (data := folder.read(f"telemetry/{name}")) is not None:
            try:
                tables.append(pq.read_table(pa.BufferReader(data), columns=columns))
            except (pa.ArrowInvalid, KeyError) as error:
                log.warning("%s is not a timeline and is ignored: %s", folder.file(f"telemetry/{name}"), error)
    return tables


def peaks_of(folder: RunFolder) -> dict[str, float]:
    """Returns the highest values of any interval of any start, over all workers: tokens per second, running rows."""
    timelines = read_timelines(folder, ["second", "tokens_per_s", "occupancy"])
    return {
        "peak_output_throughput": peak(timelines, "tokens_per_s"),
        "peak_concurrent_requests": peak(timelines, "occupancy"),
    }
