"""Locations: local paths and URIs, resolved to an Arrow filesystem and a path on it."""

from __future__ import annotations

import functools
import io
import os
import re
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from specpipe.errors import DataError

_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+://")
_BUFFER = 1 << 20


class Location(NamedTuple):
    """A path on an Arrow filesystem. `locate(location.text())` returns the same location."""

    filesystem: Any  # pyarrow.fs.FileSystem, which ships no types
    path: str
    uri_root: str = ""
    """Scheme, authority and query as "scheme://authority/?query"; "" for a local path."""
    root_path: str = ""
    """Path of `uri_root` on the filesystem, such as the bucket name."""

    @property
    def is_local(self) -> bool:
        """True for the local filesystem."""
        return str(self.filesystem.type_name) == "local"

    def at(self, path: str) -> Location:
        """Returns the location of another path on the same filesystem."""
        return self._replace(path=path)

    def child(self, name: str) -> Location:
        """Returns the location of `name` inside this folder."""
        return self.at(f"{self.path.rstrip('/')}/{name}")

    def text(self) -> str:
        """Returns the absolute path of a local location, the URI of any other."""
        if not self.uri_root:
            return self.path
        base, _, query = self.uri_root.partition("?")
        below = self.path.removeprefix(self.root_path).lstrip("/")
        return f"{base}{quote(below)}{'?' + query if query else ''}"

    def open_binary(self) -> BinaryIO:
        """Opens the file for reading as a seekable, buffered binary stream."""
        if self.is_local:
            return open(self.path, "rb", buffering=_BUFFER)
        return cast(BinaryIO, io.BufferedReader(self.filesystem.open_input_file(self.path), _BUFFER))


def locate(text: str) -> Location:
    """Resolves a local path (made absolute, `~` expanded) or a URI (one cached filesystem per authority).

    Raises DataError for a NUL character, for a URI with a password, and for one that no Arrow filesystem supports.
    """
    if "\0" in text:
        raise DataError(f"{text!r} contains a NUL character, which no path can; expected a path or URI")
    if not _URI.match(text):
        return Location(pa.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text)))
    parts = urlsplit(text)
    if parts.password:
        raise DataError(
            f"{parts.scheme}://…@{parts.hostname}{parts.path} contains a password, which would be stored with the "
            "outputs; expected credentials from the environment, such as AWS_SECRET_ACCESS_KEY"
        )
    root = f"{parts.scheme}://{parts.netloc}/{'?' + parts.query if parts.query else ''}"
    filesystem, root_path = _open_filesystem(root)
    below = unquote(parts.path).lstrip("/")
    path = f"{root_path.rstrip('/')}/{below}" if below else root_path
    return Location(filesystem, path, root, root_path)


@functools.lru_cache(maxsize=32)
def _open_filesystem(root: str) -> tuple[Any, str]:
    """Opens the filesystem of a URI's root. Cached: opening may query the object store's region."""
    try:
        filesystem, path = pa.fs.FileSystem.from_uri(root)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{root} cannot be opened: {error}. Expected file://, s3://, gs://, abfs:// or hdfs://, a network that "
            "reaches it, and credentials in the environment"
        ) from None
    return filesystem, str(path)
