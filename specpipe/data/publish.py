"""Atomic publication of files: a reader sees a complete file or none, even if the writer dies.

Local filesystems and HDFS: the file is written under a unique attempt name in the same folder, flushed to disk, and
renamed. Object stores: one put, which is atomic. All bytes are in memory before the first one is written, so a table
that cannot be serialised publishes nothing (a ParquetWriter on an object store publishes a valid, truncated file when
its block raises).
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
"""Prefix of unfinished files. Readers ignore them; they may be deleted when no run is live."""
_RENAMES = ("hdfs",)


def publish_bytes(path: str, data: Any) -> None:
    """Publishes bytes (or a pyarrow.Buffer) atomically. Replaces a file, creates folders. Raises OSError."""
    location = locate(path)
    if location.is_local:
        _publish_local(location.path, data)
    elif location.filesystem.type_name in _RENAMES:
        _publish_by_move(location, data)
    else:
        _put(location, data)


@contextmanager
def publish_file(path: str) -> Iterator[str]:
    """Yields the path of a local file to write; publishes it at `path` when the block ends without an exception.

    For files that are too large for memory; parts are published from memory. Raises OSError.
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
        with open(attempt, "xb") as file:  # plain open, so that the umask sets the permissions
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(attempt, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno and error.filename is None:  # full disk
            error.filename = path
        with suppress(OSError):
            os.unlink(attempt)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Flushes a folder to disk, so that a rename in it survives a power loss."""
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
            filesystem.delete_file(location.path)  # HDFS does not replace a file on rename
        filesystem.move(attempt.path, location.path)
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(attempt.path)
        raise


def _put(location: Location, data: Any) -> None:
    """Writes all bytes at once. No `with`: its exit on an exception would close, and thereby publish, the stream."""
    stream = location.filesystem.open_output_stream(location.path, compression=None)
    stream.write(data)
    stream.close()
