"""Part footers: their content, and detection of incomplete or changed parts."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specpipe.data import PartFooter, publish_part, read_part_footer

TABLE = pa.table({"prompt": ["a", "b"], "n": [1, 2]})


def publish(path: str) -> int:
    return publish_part(path, TABLE, shard_hash="abc", telemetry={"k": [1, 2], "s": 0.5})


def test_a_part_carries_its_rows_hash_and_telemetry(tmp_path: Path) -> None:
    path = str(tmp_path / "outputs" / "part-00000.parquet")
    assert publish(path) == os.path.getsize(path)
    footer = read_part_footer(path)
    assert footer == PartFooter(rows=2, shard_hash="abc", telemetry_json=b'{"k": [1, 2], "s": 0.5}')
    assert footer.telemetry == {"k": [1, 2], "s": 0.5}
    assert pq.read_table(path).equals(TABLE)
    assert os.listdir(tmp_path / "outputs") == ["part-00000.parquet"]


def test_telemetry_that_is_no_json_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        publish_part(str(tmp_path / "part.parquet"), TABLE, shard_hash="", telemetry={"x": object()})
    assert os.listdir(tmp_path) == []


def test_only_a_whole_part_of_ours_has_a_footer(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    assert read_part_footer(str(path)) is None
    pq.write_table(TABLE, path)
    assert read_part_footer(str(path)) is None
    publish(str(path))
    whole = path.read_bytes()
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_part_footer(str(path)) is None


def test_a_footer_with_any_byte_changed_is_none(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    publish(str(path))
    whole = path.read_bytes()
    for at in range(len(whole) - pq.read_metadata(path).serialized_size - 8, len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x5A
        path.write_bytes(broken)
        assert read_part_footer(str(path)) is None, at
    path.write_bytes(b"PAR1" + b"\xff" * 40 + b"PAR1")
    assert read_part_footer(str(path)) is None


def test_a_part_with_missing_bytes_before_its_footer_is_none(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    publish(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + whole[9:])
    assert read_part_footer(str(path)) is None


@pytest.mark.parametrize("columns", [2, 200])
def test_column_names_and_values_cannot_forge_a_footer(tmp_path: Path, columns: int) -> None:
    path = str(tmp_path / "part.parquet")
    text = "\x18\x0dspecpipe.seal\x18\x0800000000\x00"
    table = pa.table({f"{text}\x18\x0dspecpipe.rows\x18\x019{i}": [text, text] for i in range(columns)})
    table = table.replace_schema_metadata({text: text})
    publish_part(path, table, shard_hash="abc", telemetry={"worker": text})
    footer, parquet = read_part_footer(path), pq.read_metadata(path)
    assert footer == PartFooter(
        rows=parquet.num_rows, shard_hash="abc", telemetry_json=parquet.metadata[b"specpipe.telemetry"]
    )
    assert footer.telemetry == {"worker": text}


def test_an_unreadable_store_is_an_error_not_a_missing_part(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").mkdir()
    with pytest.raises(OSError):
        read_part_footer(str(tmp_path / "part.parquet"))


def test_pages_carry_checksums_so_that_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    table = pa.table({"text": [f"row {i}" for i in range(500)]})
    publish_part(str(path), table, shard_hash="", telemetry={})
    broken = bytearray(path.read_bytes())
    broken[100] ^= 1  # within the first page
    path.write_bytes(broken)
    assert read_part_footer(str(path)) is not None
    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(path, page_checksum_verification=True).read()
