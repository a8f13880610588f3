"""Input files made from Python rows. A file's name is the hash of its content, so that the same rows resume a run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data.locations import locate
from specpipe.data.publish import publish_file
from specpipe.errors import DataError

Row = str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[int]
"""A prompt, a row with the columns of a data file, a chat (list of messages), or token ids."""
_BLOCK = 1 << 20  # bytes hashed at once


def is_dataset(data: object) -> bool:
    """Returns True for a ray.data.Dataset. Does not import Ray."""
    ray_data = sys.modules.get("ray.data")
    return ray_data is not None and isinstance(data, ray_data.Dataset)


def write_input(data: Any, folder: str) -> str:
    """Writes rows to a file in `folder`, unless it exists, and returns its path. Raises DataError.

    data: an iterable of Row, a pyarrow.Table, or a ray.data.Dataset, which is read batch by batch.
    """
    with tempfile.TemporaryFile() as spool:
        if isinstance(data, pa.Table):
            pq.write_table(data, spool, compression="zstd")
            kind = "parquet"
        elif is_dataset(data):
            _write_dataset(data, spool)
            kind = "parquet"
        else:
            _write_rows(data, spool)
            kind = "jsonl"
        if not (data.num_rows if isinstance(data, pa.Table) else spool.tell()):
            raise DataError("data has no rows; expected at least one")
        return _publish(spool, folder, kind)


def _publish(spool: BinaryIO, folder: str, kind: str) -> str:
    spool.seek(0)
    digest = hashlib.sha256()
    while block := spool.read(_BLOCK):
        digest.update(block)
    location = locate(folder).child(f"rows-{digest.hexdigest()[:16]}.{kind}")
    if location.filesystem.get_file_info(location.path).is_file:
        return location.text()  # not rewritten: a resumed run compares modification times
    spool.seek(0)
    with publish_file(location.text()) as path, open(path, "xb") as file:
        shutil.copyfileobj(spool, file)
    return location.text()


def _write_rows(rows: Any, sink: BinaryIO) -> None:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"data is {_show(rows)}; expected rows: a list (or another iterable) of prompts, of dicts or of chats, a "
            "pyarrow.Table, a ray.data.Dataset, or a pathlib.Path to files"
        )
    for index, row in enumerate(rows):
        try:
            sink.write(json.dumps(_as_dict(row, index)).encode() + b"\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"row {index} of data cannot be written as JSON: {error}") from error


def _as_dict(row: object, index: int) -> Mapping[str, Any]:
    if isinstance(row, str):
        return {"prompt": row}
    if isinstance(row, Mapping):
        return row
    if isinstance(row, Sequence) and not isinstance(row, bytes) and row:
        if all(isinstance(item, Mapping) for item in row):
            return {"messages": list(row)}
        if all(isinstance(item, int) and not isinstance(item, bool) for item in row):
            return {"prompt_token_ids": list(row)}
    raise DataError(
        f"row {index} of data is {_show(row)}; expected text, a dict, a list of chat messages or a list of token ids"
    )


def _write_dataset(dataset: Any, sink: BinaryIO) -> None:
    writer: pq.ParquetWriter | None = None
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        writer = writer or pq.ParquetWriter(sink, batch.schema, compression="zstd")
        writer.write_table(batch.cast(writer.schema))
    if writer is not None:
        writer.close()


def _show(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def as_path(data: object) -> str | None:
    """Returns the path of a path-like object; None for anything else. A str is a prompt, not a path."""
    return os.fspath(data) if isinstance(data, os.PathLike) else None
