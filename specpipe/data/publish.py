"""Publishing whole: a reader sees a complete file or none, whatever dies in the middle.

Local and HDFS: written under a unique attempt name in the same folder, flushed to disk, renamed. Object stores: one
put, which is atomic there. Bytes are complete in memory before the first is written, so a table that cannot be
serialised publishes nothing (a ParquetWriter on an object store publishes a valid, short file when its block raises).
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.fs

from specpipe.data.locations import Location, locate

ATTEMPT_PREFIX = ".attempt-"
"""Names that begin so are unfinished; no reader takes them for outputs, and any may be deleted once no run is live."""
_RENAMES = ("hdfs",)


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
    except BaseException as error:
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk names no file
            error.filename = path
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
