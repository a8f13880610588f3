"""Reader of JSON lines, row by row: a malformed line makes one bad row.

pyarrow.json is not used. There one malformed line, one value of another type or one long row fails the whole file, and
a field that first appears late is dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from specpipe.data.locations import Location
from specpipe.errors import LONG_NUMBER, DataError, InputError

STRIDE = 1024
"""Rows between two entries of the offset index."""
MAX_LINE_BYTES = 64 << 20
"""Longest line in bytes. A longer one is a bad row, which bounds memory."""
_BOM = b"\xef\xbb\xbf"


class JsonLine(NamedTuple):
    """A non-blank line and its byte offset. `data` is None for a line longer than MAX_LINE_BYTES."""

    offset: int
    data: bytes | None


def scan(location: Location) -> tuple[int, tuple[int, ...]]:
    """Returns the number of rows (non-blank lines) and the byte offset of every STRIDE-th row, in one streaming pass.

    Raises DataError for a file that is one JSON array.
    """
    rows, offsets = 0, []
    with location.open_binary() as stream:
        for line in _lines(stream, 0):
            if rows == 0 and line.data is not None and line.data.removeprefix(_BOM).lstrip().startswith(b"["):
                raise DataError(f"{location.text()} is one JSON array; {array_advice(location.text())}")
            if rows % STRIDE == 0:
                offsets.append(line.offset)
            rows += 1
    return rows, tuple(offsets)


def read(location: Location, offsets: tuple[int, ...], start: int, stop: int) -> Iterator[bytes | None]:
    """Yields the lines of rows [start, stop), None for a line longer than MAX_LINE_BYTES. offsets: from `scan`."""
    if start >= stop:
        return
    nearest = start // STRIDE
    with location.open_binary() as stream:
        row = nearest * STRIDE
        for line in _lines(stream, offsets[nearest]):
            if row >= start:
                yield line.data
            row += 1
            if row >= stop:
                return


def _lines(stream: BinaryIO, offset: int) -> Iterator[JsonLine]:
    stream.seek(offset)
    while data := stream.readline(MAX_LINE_BYTES):
        length, too_long = len(data), False
        while not data.endswith(b"\n") and (rest := stream.readline(MAX_LINE_BYTES)):
            data, too_long = rest, True
            length += len(rest)
        if too_long or not data.isspace():
            yield JsonLine(offset, None if too_long else data)
        offset += length


def parse(data: bytes | None) -> dict[str, object]:
    """Parses one line as a JSON object. Raises InputError with the reason for any other line."""
    if data is None:
        raise InputError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB; expected a shorter one")
    try:
        values = json.loads(data.removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"the line is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise InputError("the line is nested too deeply") from None
    except ValueError as error:
        if LONG_NUMBER in str(error):
            raise InputError("the line has a number of more than 4,300 digits; expected a shorter one") from None
        raise InputError(f"the line is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"the line is {_kind(values)}; expected a JSON object")
    return values


def array_advice(name: str) -> str:
    """Returns instructions for a JSON file that is one array, as ShareGPT is often distributed."""
    return (
        "expected one JSON object per line. Convert it once and use the converted file: chats "
        f"(ShareGPT, OpenAI messages) with `specpipe convert {name} --to parquet`, other records with "
        "`jq -c '.[]' FILE.json > FILE.jsonl`"
    )


def _kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
