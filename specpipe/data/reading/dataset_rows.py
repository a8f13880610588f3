"""Rows of a range of a file in any format, and their content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from specpipe.data.locations import locate
from specpipe.data.reading import jsonl, table_formats
from specpipe.data.reading.input_files import InputFile
from specpipe.errors import InputError

_NOT_FOR_PYTHON = (ValueError, NotImplementedError, OverflowError, KeyError)
"""Exceptions of pyarrow for a value that Python cannot represent. KeyError: an unknown time zone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of an input file. `values` is None for a row that cannot be read; `error` is then the reason."""

    index_in_file: int
    values: dict[str, object] | None
    error: str = ""


def read_rows(file: InputFile, start: int, stop: int, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yields rows [start, stop) of a file in order, in bounded memory. columns: names to read; None for all.

    A row that cannot be read is a Row with an error. Raises OSError or pyarrow's errors where the file cannot be read.
    """
    if not 0 <= start <= stop <= file.rows:
        raise ValueError(f"rows {start} to {stop} of {file.path}, which has {file.rows}")
    location = locate(file.path)
    if file.kind == "jsonl":
        for index, line in enumerate(jsonl.read(location, file.offsets, start, stop), start):
            yield _parsed(index, line, columns)
        return
    index = start
    for batch in table_formats.read_batches(location, file.kind, start, stop, columns):
        for values, error in _python_rows(batch):
            yield Row(index_in_file=index, values=values, error=error)
            index += 1


def read_kept_columns(file: InputFile, start: int, stop: int, schema: Any) -> Any:
    """Returns the kept columns of rows [start, stop) as a pyarrow.Table. schema: from column_checks.kept_schema.

    Values from JSON lines become text: strings unchanged, other values as JSON, null where a row has none.
    """
    if file.kind != "jsonl":
        batches = table_formats.read_batches(locate(file.path), file.kind, start, stop, schema.names)
        return pa.Table.from_batches([b.select(schema.names).cast(schema) for b in batches], schema)
    columns: dict[str, list[str | None]] = {name: [] for name in schema.names}
    for row in read_rows(file, start, stop):
        for name, cells in columns.items():
            cells.append(as_text((row.values or {}).get(name)))
    return pa.table(columns, schema=schema)


@dataclass(slots=True)
class RowHasher:
    """SHA-256 over rows in order, in a canonical form that is independent of format, batching and key order."""

    _hash: Any = field(default_factory=hashlib.sha256)

    def update(self, row: Row) -> None:
        """Adds the next row."""
        text = row.error if row.values is None else canonical(row.values)
        data = text.encode("utf-8", "surrogatepass")
        self._hash.update(b"%d %d " % (row.values is not None, len(data)))
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Returns the hash of all rows so far, as 64 hexadecimal digits."""
        return str(self._hash.hexdigest())


def hash_rows(rows: Iterator[Row]) -> str:
    """Returns the content hash of a shard's rows, as 64 hexadecimal digits."""
    hasher = RowHasher()
    for row in rows:
        hasher.update(row)
    return hasher.hexdigest()


def canonical(values: dict[str, object]) -> str:
    """Returns a row as sorted, compact JSON without nulls: a table stores nulls where JSON lines have no key."""
    present = {key: value for key, value in values.items() if value is not None}
    return json.dumps(present, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)


def utf8(text: str) -> str:
    """Returns text that Arrow can store: replaces lone surrogates by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _parsed(index: int, line: bytes | None, columns: Sequence[str] | None) -> Row:
    try:
        values = jsonl.parse(line)
    except InputError as error:
        return Row(index_in_file=index, values=None, error=str(error))
    if columns is not None:
        values = {key: value for key, value in values.items() if key in columns}
    return Row(index_in_file=index, values=values)


def _python_rows(batch: Any) -> Iterator[tuple[dict[str, object] | None, str]]:
    """Yields values or an error for each row of a batch. A value that Python cannot represent makes one bad row."""
    try:
        for values in batch.to_pylist():
            yield values, ""
        return
    except _NOT_FOR_PYTHON:
        pass
    for i in range(batch.num_rows):
        try:
            yield batch.slice(i, 1).to_pylist()[0], ""
        except _NOT_FOR_PYTHON as error:
            yield None, f"the row cannot be read: {error}"


def as_text(value: object) -> str | None:
    """Returns strings and None unchanged, other values as JSON (decimals as numbers)."""
    if value is None or isinstance(value, str):
        return value if value is None else utf8(value)
    return utf8(json.dumps(value, ensure_ascii=False, default=float))
