"""Checks of a dataset's columns that run before a model is loaded."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data.columns import CONTINUATIONS, PROMPT_COLUMNS
from specpipe.data.locations import locate
from specpipe.data.reading.dataset_rows import read_rows
from specpipe.data.reading.input_files import InputFile
from specpipe.data.reading.table_formats import schema_of
from specpipe.data.requests.request_builder import input_columns
from specpipe.errors import DataError

log = logging.getLogger(__name__)
_THREADS = 16
_SAMPLE = 20  # JSON lines have no schema; column names are taken from so many first rows


def require_prompt_column(files: Sequence[InputFile], column: str | None = None) -> None:
    """Raises DataError for a file without a prompt column, or with two columns of one name that requests use.

    Without this check a wrong name would fail every row. column: data.prompt; None for PROMPT_COLUMNS.
    """
    wanted = PROMPT_COLUMNS if column is None else (column,)
    for file in files:
        names = _column_names(file)
        for name in input_columns(column):
            _require_one(file, names, name)
        if not names or any(name in names for name in (*wanted, CONTINUATIONS)):
            continue
        has = f"{file.path} has the columns {', '.join(names)}"
        if column is None:
            raise DataError(f"{has}; expected one of {', '.join(PROMPT_COLUMNS)}, or its name as data.prompt")
        close = difflib.get_close_matches(column, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise DataError(f"data.prompt is {column!r}, but {has}{hint}")


def kept_schema(files: Sequence[InputFile], names: Sequence[str]) -> Any:
    """Returns the pyarrow.Schema of the columns in output.keep_columns. Reads no rows.

    A kept column of JSON lines has type string. Raises DataError for a column that a file lacks, for types that differ
    between files, and for a type that Parquet does not support.
    """
    fields: dict[str, Any] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        schemas = list(pool.map(_schema, files if names else ()))
    for file, schema in zip(files, schemas, strict=False):
        for name in names:
            kept = pa.string() if schema is None else _type_in(file, schema, name)
            if fields.setdefault(name, kept) != kept:
                raise DataError(
                    f"column {name!r} is {kept} in {file.path} and {fields[name]} in files before it; "
                    "expected one type, to keep it in the output"
                )
    _warn_of_absent(files, names)
    return pa.schema([pa.field(name, fields[name]) for name in names if name in fields])


def _warn_of_absent(files: Sequence[InputFile], names: Sequence[str]) -> None:
    """Logs a warning, not an error: in JSON lines a column may first appear in later rows."""
    if not names or any(file.kind != "jsonl" for file in files):
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        present = list(dict.fromkeys(name for found in pool.map(_column_names, files) for name in found))
    for name in set(names).difference(present):
        close = difflib.get_close_matches(name, present, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        log.warning("output.keep_columns names %r, which no file has in its first %d rows%s", name, _SAMPLE, hint)


def _schema(file: InputFile) -> Any:
    return None if file.kind == "jsonl" else schema_of(locate(file.path), file.kind)


def _require_one(file: InputFile, names: Sequence[str], name: str) -> None:
    if names.count(name) > 1:
        raise DataError(f"{file.path} has {names.count(name)} columns called {name!r}; expected one: rename the others")


def _type_in(file: InputFile, schema: Any, name: str) -> Any:
    if name not in schema.names:
        has = ", ".join(schema.names)
        raise DataError(f"output.keep_columns names {name!r}, which {file.path} lacks; it has the columns {has}")
    _require_one(file, schema.names, name)
    field = schema.field(name)
    try:
        pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
    except pa.ArrowException:
        raise DataError(
            f"output.keep_columns names {name!r}, which is {field.type} in {file.path}; outputs are Parquet, which has "
            "no such type. Leave it out, or write the input with another type"
        ) from None
    return field.type


def _column_names(file: InputFile) -> list[str]:
    """Returns a table's columns; for JSON lines the keys of the first rows that can be read."""
    if file.kind != "jsonl":
        return list(file.columns)
    rows = read_rows(file, 0, min(_SAMPLE, file.rows))
    return list(dict.fromkeys(key for row in rows for key in row.values or {}))
