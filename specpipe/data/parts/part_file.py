"""A part: outputs of one shard as Parquet, with a footer that says what it is and seals it.

The seal is a CRC-32 of the footer and of the file's size, in the footer itself. A part is told whole by it and two
short reads; letting Parquet's library parse the footer takes ten times as long, which counts at 100,000 parts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data.locations import Location, locate
from specpipe.data.publish import publish_bytes

_SEAL, _ROWS, _HASH, _TELEMETRY = b"specpipe.seal", b"specpipe.rows", b"specpipe.shard_hash", b"specpipe.telemetry"
_UNSEALED = b"00000000"
_TAIL = 16 * 1024  # holds most footers: one read of a store instead of two


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
    """Publishes a pyarrow.Table as a part at `path` (local or a URI); gives its size in bytes.

    Raises OSError when it cannot be written, pyarrow's errors when it cannot be serialised; then nothing is published.
    """
    told = {
        _SEAL: _UNSEALED,
        _ROWS: str(table.num_rows).encode(),
        _HASH: shard_hash.encode(),
        _TELEMETRY: json.dumps(telemetry, sort_keys=True).encode(),
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(told)  # not the schema's metadata, which a footer holds twice
    data = sink.getvalue()
    seal(memoryview(data))
    publish_bytes(path, data)
    return int(data.size)


def read_part_footer(path: str) -> PartFooter | None:
    """`read_footer` of the part at a local path or URI."""
    return read_footer(locate(path))


def read_footer(location: Location) -> PartFooter | None:
    """The footer of a published part; None where there is no file, or one that specpipe did not publish whole.

    Raises OSError when the file is there and cannot be read: a store that is down must not look like a missing part.
    """
    try:
        with location.filesystem.open_input_file(location.path) as source:
            size = source.size()
            footer = _footer_bytes(source, size)
    except FileNotFoundError:
        return None
    try:
        if footer[(at := _place(footer, _SEAL)[0]) :][: len(_UNSEALED)] != _digest(footer, at, size):
            return None
        rows, shard_hash, telemetry = (_value(footer, key) for key in (_ROWS, _HASH, _TELEMETRY))
    except (ValueError, IndexError):
        return None
    return PartFooter(rows=int(rows), shard_hash=shard_hash.decode(), telemetry_json=telemetry)


def seal(part: memoryview) -> None:
    """Seals a part, all bytes of it, in place; again after its footer was changed."""
    footer = part.cast("B")[-_footer_size(bytes(part[-8:])) :]
    at, _ = _place(bytes(footer), _SEAL)
    footer[at : at + len(_UNSEALED)] = _digest(bytes(footer), at, len(part))


def _digest(footer: bytes, at: int, size: int) -> bytes:
    """8 hexadecimal digits: of a file's size and footer, but for the seal itself, at `at`."""
    return b"%08x" % zlib.crc32(footer[at + len(_UNSEALED) :], zlib.crc32(footer[:at], size & 0xFFFFFFFF))


def _footer_bytes(source: Any, size: int) -> bytes:
    """The end of a Parquet file: footer, its length (4 bytes), magic (4 bytes). Empty for a file that is none."""
    tail = bytes(source.read_at(_TAIL, max(0, size - _TAIL)))
    if not tail.endswith(b"PAR1"):
        return b""
    length = min(size, _footer_size(tail))
    if length > len(tail):
        return bytes(source.read_at(length, size - length))
    return tail[-length:]


def _footer_size(tail: bytes) -> int:
    return int.from_bytes(tail[-8:-4], "little") + 8


def _value(footer: bytes, key: bytes) -> bytes:
    at, length = _place(footer, key)
    return footer[at : at + length]


def _place(footer: bytes, key: bytes) -> tuple[int, int]:
    """Where the value of a key begins in the footer, and its length. Raises ValueError or IndexError without one.

    In Thrift's compact protocol, which Parquet uses, a text is 0x18, its length as a varint, and its bytes; values
    follow their keys. What rows say stands before the keys, and JSON has no 0x18: the last match is the key.
    """
    at = footer.rindex(b"\x18" + bytes([len(key)]) + key + b"\x18") + len(key) + 3
    length = shift = 0
    while True:
        length |= (footer[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if footer[at - 1] < 0x80:
            return at, length
