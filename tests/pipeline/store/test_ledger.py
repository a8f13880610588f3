"""A part counts only if it is whole and ours."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job

from specpipe.data import publish_part
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import done_record, read_ledger
from specpipe.pipeline.store.manifest import read_manifest


@pytest.fixture
def run(tmp_path: Path):
    execute(make_job(tmp_path, rows=8), backend=InProcessBackend())
    folder = RunFolder.at(str(tmp_path / "out"))
    manifest = read_manifest(folder)
    assert manifest is not None
    return folder, manifest


def republish(path: Path, *, rows: int | None = None, **telemetry: object) -> None:
    table = pq.read_table(path)
    there = json.loads(pq.read_metadata(path).metadata[b"specpipe.telemetry"])
    publish_part(
        str(path),
        table if rows is None else table.slice(0, rows),
        shard_hash="a" * 64,
        telemetry={**there, **telemetry},
    )


def test_all_published_parts_are_done(run) -> None:
    folder, manifest = run
    done = read_ledger(folder, manifest.shards, manifest.run_id).table()
    assert done["shard"].to_pylist() == [shard.index for shard in manifest.shards]


@pytest.mark.parametrize("cut", [0, 1, 4, 100, -1, -8, -100])
def test_a_torn_part_is_not(run, cut: int) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    path.write_bytes(path.read_bytes()[:cut])
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_a_part_with_a_broken_footer_is_not(run) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    data = bytearray(path.read_bytes())
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[begin : begin + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


@pytest.mark.parametrize("telemetry", [{"run_id": "another"}, {"shard": 1}, {"rows": 1}, {"attempt": {}, "ttft": 3}])
def test_a_foreign_part_is_not(run, telemetry: dict[str, object]) -> None:
    folder, manifest = run
    republish(Path(folder.file(folder.part_name(0))), **telemetry)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_a_part_that_is_short_of_a_row_is_not(run) -> None:
    folder, manifest = run
    republish(Path(folder.file(folder.part_name(0))), rows=manifest.shards[0].rows - 1)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_a_parquet_file_of_someone_else_is_not(run) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None
    assert 0 not in read_ledger(folder, manifest.shards, manifest.run_id)
