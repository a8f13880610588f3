"""Atomic publication: a part is complete or absent."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specpipe.data import publish_bytes, publish_part, read_part_footer
from specpipe.data.locations import locate
from specpipe.data.publish import publish_file

TABLE = pa.table({"prompt": ["a", "b"], "n": [1, 2]})


def publish(path: str, rows: int = 2) -> int:
    return publish_part(path, TABLE.slice(0, rows), shard_hash="abc", telemetry={"k": [1, 2], "s": 0.5})


def test_publishing_again_replaces_the_part(tmp_path: Path) -> None:
    path = str(tmp_path / "part.parquet")
    publish(path)
    publish(path, rows=1)
    footer = read_part_footer(path)
    assert footer is not None and footer.rows == 1


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        publish_bytes(str(tmp_path / "summary.json"), b"{}")
        publish(str(tmp_path / "part.parquet"))
        with publish_file(str(tmp_path / "big.parquet")) as path:
            pq.write_table(TABLE, path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o666 & ~umask}


def test_publish_file_publishes_a_whole_file_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "new" / "big.parquet"
    with pytest.raises(RuntimeError), publish_file(str(target)) as path:
        Path(path).write_bytes(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path / "new") == []
    with publish_file(str(target)) as path:
        pq.write_table(TABLE, path)
        assert not target.exists()
    assert pq.read_table(target).equals(TABLE) and os.listdir(tmp_path / "new") == ["big.parquet"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_writer_that_raises_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "manifest.json"
    publish_bytes(str(path), b"old")

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        publish_bytes(str(path), b"new")
    assert os.listdir(tmp_path) == ["manifest.json"] and path.read_bytes() == b"old"


def test_file_and_rename_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    publish_bytes(str(tmp_path / "manifest.json"), b"{}")
    attempt, folder = flushed
    assert os.path.basename(attempt).startswith(".attempt-") and folder == str(tmp_path)
    with publish_file(str(tmp_path / "big.parquet")) as path:
        Path(path).write_bytes(b"whole")
    assert flushed[2:] == [path, str(tmp_path)]


def test_a_process_that_dies_while_writing_leaves_only_an_attempt(tmp_path: Path) -> None:
    dies = (
        "import os, sys, pyarrow as pa\n"
        "from specpipe.data import publish_part\n"
        "os.fsync = lambda _: os._exit(9)\n"  # the bytes are written and nothing is renamed
        "publish_part(sys.argv[1], pa.table({'a': [1]}), shard_hash='', telemetry={})\n"
    )
    assert subprocess.run([sys.executable, "-c", dies, str(tmp_path / "part.parquet")]).returncode == 9
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".attempt-")
    assert read_part_footer(str(tmp_path / "part.parquet")) is None
    publish(str(tmp_path / "part.parquet"))
    assert read_part_footer(str(tmp_path / "part.parquet")) is not None


def test_an_object_store_gets_one_put() -> None:
    path = "mock:///run/outputs/part-00000.parquet"
    locate(path).filesystem.create_dir("run/outputs")
    publish(path)
    footer = read_part_footer(path)
    assert footer is not None and footer.rows == 2
    names = [i.base_name for i in locate(path).filesystem.get_file_info(pa.fs.FileSelector("run/outputs"))]
    assert names == ["part-00000.parquet"]


def test_the_old_part_is_deleted_where_renames_do_not_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.data.publish._RENAMES", ("mock",))
    path = "mock:///hdfs/part.parquet"
    publish(path)
    publish(path, rows=1)
    footer = read_part_footer(path)
    assert footer is not None and footer.rows == 1
    names = [i.base_name for i in locate(path).filesystem.get_file_info(pa.fs.FileSelector("hdfs"))]
    assert names == ["part.parquet"]
