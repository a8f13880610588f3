"""Publishing whole: a reader sees a complete file or none, whatever dies in the middle.

Local and HDFS: written under a unique attempt name in the same folder, flushed to disk, renamed. Object stores: one
put, which is atomic there. Bytes are complete in memory before the first is written, so a table that cannot be
serialised publishes nothing (a ParquetWriter on an object store publishes a valid, short file when its block raises).
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from specpipe.data.locations import Location, locate

ATTEMPT_PREFIX = ".attempt-"
"""Names that begin so are unfinished; no reader takes them for outputs, and any may be deleted once no run is live."""
_TELEMETRY, _HASH, _ROWS = b"specpipe.telemetry", b"specpipe.shard_hash", b"specpipe.rows"
_RENAMES = ("hdfs",)
_TAIL = 32 * 1024  # holds most footers: one read of a store instead of two


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFooter:
    """What a part says about itself."""

    rows: int
    shard_hash: str
    """hash_rows of the input rows that it was made from."""
    telemetry_json: bytes

    @property
    def telemetry(self) -> Mapping[str, object]:
        """Raises ValueError for what is no JSON."""
        found: Mapping[str, object] = json.loads(self.telemetry_json)
        return found


def publish_part(path: str, table: Any, *, shard_hash: str, telemetry: Mapping[str, object]) -> int:
    """Publishes a pyarrow.Table as Parquet at `path` (local or a URI); gives its size in bytes.

    Raises OSError when it cannot be written, pyarrow's errors when it cannot be serialised; then nothing is published.
    """
    metadata = {
        **(table.schema.metadata or {}),
        _TELEMETRY: json.dumps(telemetry, sort_keys=True).encode(),
        _HASH: shard_hash.encode(),
        _ROWS: str(table.num_rows).encode(),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd", write_page_checksum=True)
    data = sink.getvalue()
    publish_bytes(path, data)
    return int(data.size)


def publish_bytes(path: str, data: Any) -> None:
    """Publishes bytes (or a pyarrow.Buffer) whole, over what is there. Folders are made. Raises OSError."""
    location = locate(path)
    if location.is_local:
        _publish_local(location.path, data)
    elif location.filesystem.type_name in _RENAMES:
        _publish_by_move(location, data)
    else:
        _put(location, data)


@contextmanager
def publish_file(path: str) -> Iterator[str]:
    """Gives the path of a local file to write; publishes it whole at `path` when the block ends, nothing if it raises.

    For files that no memory holds: parts are published from memory. Raises OSError.
    """
    location = locate(path)
    folder, name = os.path.split(location.path) if location.is_local else (tempfile.gettempdir(), "file")
    os.makedirs(folder, exist_ok=True)
    attempt = os.path.join(folder, f"{ATTEMPT_PREFIX}{uuid.uuid4().hex}-{name}")
    try:
        yield attempt
        with open(attempt, "rb") as file:
            os.fsync(file.fileno())
        if location.is_local:
            os.replace(attempt, location.path)
            _sync_folder(folder)
        else:
            with pa.memory_map(attempt) as mapped:
                publish_bytes(path, mapped.read_buffer())
    finally:
        with suppress(OSError):
            os.unlink(attempt)


def read_part_footer(path: str) -> PartFooter | None:
    """The footer of a published part; None where there is no file, or one that specpipe did not publish whole.

    Raises OSError when the file is there and cannot be read: a store that is down must not look like a missing part.
    """
    location = locate(path)
    try:
        with location.filesystem.open_input_file(location.path) as source:
            tail = _footer_bytes(source)
    except FileNotFoundError:
        return None
    try:
        parquet = pq.read_metadata(pa.BufferReader(tail))
        metadata = parquet.metadata or {}
        rows = int(metadata[_ROWS])
        telemetry = metadata[_TELEMETRY]
        shard_hash = metadata[_HASH].decode()
    except (pa.ArrowException, OSError, KeyError, ValueError):  # pyarrow calls some broken footers OSError
        return None
    if rows != parquet.num_rows or not telemetry.startswith(b"{"):
        return None
    return PartFooter(rows=rows, shard_hash=shard_hash, telemetry_json=telemetry)


def _footer_bytes(source: Any) -> bytes:
    """The end of a Parquet file that its metadata can be parsed from: footer, its length (4 bytes), magic (4 bytes)."""
    size = source.size()
    source.seek(max(0, size - _TAIL))
    tail = bytes(source.read(_TAIL))
    length = min(size, int.from_bytes(tail[-8:-4], "little") + 8)
    if length > len(tail):
        source.seek(size - length)
        return bytes(source.read(length))
    return tail[-length:]


def _publish_local(path: str, data: Any) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    attempt = os.path.join(folder, f"{ATTEMPT_PREFIX}{uuid.uuid4().hex}-{name}")
    try:
        with open(attempt, "xb") as file:  # plain open: the umask decides who may read
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(attempt, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(attempt)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Makes the rename itself survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish_by_move(location: Location, data: Any) -> None:
    folder, _, name = location.path.rpartition("/")
    filesystem = location.filesystem
    filesystem.create_dir(folder, recursive=True)
    attempt = location.at(f"{folder}/{ATTEMPT_PREFIX}{uuid.uuid4().hex}-{name}")
    try:
        _put(attempt, data)
        if filesystem.get_file_info(location.path).type == pa.fs.FileType.File:
            filesystem.delete_file(location.path)  # a rename there does not replace
        filesystem.move(attempt.path, location.path)
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(attempt.path)
        raise


def _put(location: Location, data: Any) -> None:
    """One write of everything. No `with`: leaving a block by an exception would close, and so publish, the stream."""
    stream = location.filesystem.open_output_stream(location.path, compression=None)
    stream.write(data)
    stream.close()
