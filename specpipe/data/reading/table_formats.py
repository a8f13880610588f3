"""Columnar input formats (Parquet, Arrow IPC): row counts from metadata, row ranges in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from specpipe.data.locations import Location

_BUFFER = 1 << 20
BATCH_ROWS = 256
"""Rows that are converted to Python objects at a time."""
_IPC_FILE_MAGIC = b"ARROW1"


class TableScan(NamedTuple):
    """Metadata of one file for planning."""

    rows: int
    columns: tuple[str, ...]
    prompt_bytes: int | None = None
    """Mean size of a row's prompt columns in bytes; None where the format does not store it."""


class TableFormat(NamedTuple):
    """Reader functions of one file format. Each takes the open file as its first argument."""

    schema: Callable[[Any], Any]
    """(file) → pyarrow.Schema."""
    scan: Callable[[Any, Sequence[str]], TableScan]
    """(file, names of prompt columns) → TableScan. Reads no rows."""
    batches: Callable[[Any, int, int, Sequence[str] | None], Iterator[tuple[int, Any]]]
    """(file, start, stop, columns) → pairs of a record batch and the position of its first row.

    The batches contain rows [start, stop), and rows around them where that is cheaper to read. columns: None for all;
    names that the file lacks are ignored."""


@contextmanager
def _opened(location: Location, kind: str) -> Iterator[Any]:
    """Opens a file. Local IPC files are memory-mapped, so that unused batches are not read."""
    mapped = location.is_local and kind == "arrow"
    source = pa.memory_map(location.path) if mapped else location.filesystem.open_input_file(location.path)
    with source:
        yield source


def schema_of(location: Location, kind: str) -> Any:
    """Returns the pyarrow.Schema of a file. kind: a key of FORMATS."""
    with _opened(location, kind) as source:
        return FORMATS[kind].schema(source)


def scan(location: Location, kind: str, prompt_columns: Sequence[str]) -> TableScan:
    """Returns row count, columns and prompt size of a file. kind: a key of FORMATS."""
    with _opened(location, kind) as source:
        return FORMATS[kind].scan(source, prompt_columns)


def _scan_parquet(source: Any, prompt_columns: Sequence[str]) -> TableScan:
    """Scans a Parquet footer. `prompt_bytes` counts all columns where the file has no prompt column."""
    metadata = pq.read_metadata(source)
    sizes: dict[bool, int] = {True: 0, False: 0}
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        for column in (group.column(i) for i in range(group.num_columns)):
            is_prompt = column.path_in_schema.split(".", 1)[0] in prompt_columns
            sizes[is_prompt] += column.total_uncompressed_size
    total = sizes[True] or sizes[False]
    names = tuple(metadata.schema.to_arrow_schema().names)
    return TableScan(rows=metadata.num_rows, columns=names, prompt_bytes=total // max(1, metadata.num_rows))


def _scan_ipc(source: Any, prompt_columns: Sequence[str]) -> TableScan:
    """Counts rows of an IPC file (from its metadata) or of an IPC stream (by reading it)."""
    reader = _ipc_reader(source, None)
    rows = int(reader.count_rows()) if _is_file(reader) else sum(batch.num_rows for batch in reader)
    return TableScan(rows=rows, columns=tuple(reader.schema.names))


def read_batches(location: Location, kind: str, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yields pyarrow.RecordBatches of at most BATCH_ROWS rows, which together are exactly rows [start, stop).

    columns: None for all; names that the file lacks are ignored.
    """
    with _opened(location, kind) as source:
        for first, batch in FORMATS[kind].batches(source, start, stop, columns):
            begin, end = max(0, start - first), min(batch.num_rows, stop - first)
            for at in range(begin, end, BATCH_ROWS):
                yield batch.slice(at, min(BATCH_ROWS, end - at))


def _parquet_batches(source: Any, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    """Yields the position of each batch's first row, and the batch. Reads only row groups that overlap the range."""
    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)  # otherwise whole column chunks are read
    first = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if first < stop and first + rows > start:
            at = first
            for batch in file.iter_batches(BATCH_ROWS * 4, [group], _present(file.schema_arrow, columns)):
                if at >= stop:
                    return
                if at + batch.num_rows > start:
                    yield at, batch
                at += batch.num_rows
        first += rows


def _ipc_batches(source: Any, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    reader = _ipc_reader(source, columns)
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if _is_file(reader) else reader
    first = 0
    for batch in batches:
        if first >= stop:
            return
        if first + batch.num_rows > start:
            yield first, batch if columns is None else batch.select(_present(batch.schema, columns))
        first += batch.num_rows


def _ipc_reader(source: Any, columns: Sequence[str] | None) -> Any:
    is_file = source.read(len(_IPC_FILE_MAGIC)) == _IPC_FILE_MAGIC
    source.seek(0)
    opener = pa.ipc.open_file if is_file else pa.ipc.open_stream
    reader = opener(source)
    if columns is None:
        return reader
    fields = [i for i, name in enumerate(reader.schema.names) if name in columns]
    source.seek(0)
    return opener(source, options=pa.ipc.IpcReadOptions(included_fields=fields))


def _is_file(reader: Any) -> bool:
    return isinstance(reader, pa.ipc.RecordBatchFileReader)


def _present(schema: Any, columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else [name for name in schema.names if name in columns]


FORMATS = {
    "parquet": TableFormat(schema=pq.read_schema, scan=_scan_parquet, batches=_parquet_batches),
    "arrow": TableFormat(schema=lambda source: _ipc_reader(source, None).schema, scan=_scan_ipc, batches=_ipc_batches),
}
"""Formats by kind: every value of input_files.FileKind except "jsonl"."""
