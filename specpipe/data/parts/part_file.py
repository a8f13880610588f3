"""Part files: the outputs of one shard as Parquet, with a sealed footer that identifies them.

The seal is a CRC-32 of the footer and the file's size, stored in the footer. With it, two short reads verify that a
part is complete. Parsing the footer with Parquet's library takes ten times as long, which matters at 100,000 parts.
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
_TAIL = 16 * 1024  # bytes; larger than most footers, which saves a second request to the store


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFooter:
    """Metadata in the footer of a part."""

    rows: int
    shard_hash: str
    """`hash_rows` of the input rows."""
    telemetry_json: bytes

    @property
    def telemetry(self) -> Mapping[str, object]:
        """Telemetry record of the shard. Raises ValueError for invalid JSON."""
        found: Mapping[str, object] = json.loads(self.telemetry_json)
        return found


def publish_part(path: str, table: Any, *, shard_hash: str, telemetry: Mapping[str, object]) -> int:
    """Publishes a pyarrow.Table as a part at `path` (local or a URI). Returns its size in bytes.

    Raises OSError if it cannot be written and pyarrow's errors if it cannot be serialised; then nothing is published.
    """
    metadata = {
        _SEAL: _UNSEALED,
        _ROWS: str(table.num_rows).encode(),
        _HASH: shard_hash.encode(),
        _TELEMETRY: json.dumps(telemetry, sort_keys=True).encode(),
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)  # a footer would store the schema's metadata twice
    data = sink.getvalue()
    seal(memoryview(data))
    publish_bytes(path, data)
    return int(data.size)


def read_part_footer(path: str) -> PartFooter | None:
    """Calls `read_footer` for a local path or URI."""
    return read_footer(locate(path))


def read_footer(location: Location) -> PartFooter | None:
    """Returns the footer of a published part; None for a missing file or one without a valid seal.

    Raises OSError if the file exists and cannot be read: an unreachable store must not look like a missing part.
    """
    try:
        with location.filesystem.open_input_file(location.path) as source:
            size = source.size()
            footer = _footer_bytes(source, size)
    except FileNotFoundError:
        return None
    try:
        if footer[(at := _value_span(footer, _SEAL)[0]) :][: len(_UNSEALED)] != _digest(footer, at, size):
            return None
        rows, shard_hash, telemetry = (_value(footer, key) for key in (_ROWS, _HASH, _TELEMETRY))
    except (ValueError, IndexError):
        return None
    return PartFooter(rows=int(rows), shard_hash=shard_hash.decode(), telemetry_json=telemetry)


def seal(part: memoryview) -> None:
    """Writes the seal of a part in place. part: all bytes of the file. A change of the footer needs a new seal."""
    footer = part.cast("B")[-_footer_size(bytes(part[-8:])) :]
    at, _ = _value_span(bytes(footer), _SEAL)
    footer[at : at + len(_UNSEALED)] = _digest(bytes(footer), at, len(part))


def _digest(footer: bytes, at: int, size: int) -> bytes:
    """Returns the seal: 8 hexadecimal digits over file size and footer without the seal, which is at offset `at`."""
    return b"%08x" % zlib.crc32(footer[at + len(_UNSEALED) :], zlib.crc32(footer[:at], size & 0xFFFFFFFF))


def _footer_bytes(source: Any, size: int) -> bytes:
    """Reads the end of a Parquet file: footer, its length (4 bytes), magic (4 bytes). Empty for any other file."""
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
    at, length = _value_span(footer, key)
    return footer[at : at + length]


def _value_span(footer: bytes, key: bytes) -> tuple[int, int]:
    """Returns offset and length of a key's value in the footer. Raises ValueError or IndexError for a missing key.

    In Thrift's compact protocol, which Parquet uses, a string is 0x18, its length as a varint, and its bytes; a value
    follows its key. Column statistics, which hold user data, precede the keys, and JSON contains no 0x18: the last
    match is the key.
    """
    at = footer.rindex(b"\x18" + bytes([len(key)]) + key + b"\x18") + len(key) + 3
    length = shift = 0
    while True:
        length |= (footer[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if footer[at - 1] < 0x80:
            return at, length
