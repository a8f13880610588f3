"""Streaming reader of chat files: one JSON array or JSON lines, of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from specpipe.data.locations import Location
from specpipe.data.reading import jsonl
from specpipe.errors import DataError, InputError

_BUFFER = 1 << 20
_BOM = b"\xef\xbb\xbf"


def read_records(location: Location) -> Iterator[object]:
    """Yields each element of a top-level array, or each line of JSON lines; an InputError for an invalid line.

    Holds one record in memory. Raises DataError where an array is not valid JSON, with the number of records before
    that place: the start of the next element cannot be found.
    """
    with location.open_binary() as stream:
        is_array = _skip_to_json(stream)
        if is_array:
            yield from _elements(stream, location.text())
            return
    rows, offsets = jsonl.scan(location)
    for line in jsonl.read(location, offsets, 0, rows):
        try:
            yield jsonl.parse(line)
        except InputError as error:
            yield error


def _skip_to_json(stream: BinaryIO) -> bool:
    """Seeks to the first byte after white space and byte order mark. Returns True if an array begins there."""
    at = 0
    while head := stream.read(_BUFFER):
        body = (head.removeprefix(_BOM) if at == 0 else head).lstrip()
        if body:
            stream.seek(at + len(head) - len(body))
            return body.startswith(b"[")
        at += len(head)
    return False


def _elements(stream: BinaryIO, name: str) -> Iterator[object]:
    import ijson

    count = 0
    try:
        for element in ijson.items(stream, "item", buf_size=_BUFFER):
            yield element
            count += 1
    except (ijson.JSONError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{name} is not JSON after {count:,} records: {reason[:200]}. Expected one complete array in UTF-8: "
            "fetch a truncated file again, convert another encoding (iconv -t utf-8)"
        ) from None
