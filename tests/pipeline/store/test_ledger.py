"""A shard is finished only where its part is complete and of this run."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job

from specpipe.data import publish_part
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import done_record, read_ledger
from specpipe.pipeline.store.manifest import Manifest, require_manifest


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    execute(make_job(folder, rows=8), backend=InProcessBackend())
    return folder / "out"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> tuple[RunFolder, Manifest]:
    """A copy to damage."""
    folder = RunFolder.at(str(shutil.copytree(finished, tmp_path / "out")))
    return folder, require_manifest(folder)


def republish(path: Path, *, rows: int | None = None, **telemetry: object) -> None:
    table = pq.read_table(path)
    telemetry_before = json.loads(pq.read_metadata(path).metadata[b"specpipe.telemetry"])
    publish_part(
        str(path),
        table if rows is None else table.slice(0, rows),
        shard_hash="a" * 64,
        telemetry={**telemetry_before, **telemetry},
    )


def test_all_published_parts_are_finished(run) -> None:
    folder, manifest = run
    done = read_ledger(folder, manifest.shards, manifest.run_id).table()
    assert done["shard"].to_pylist() == [shard.index for shard in manifest.shards]


@pytest.mark.parametrize("cut", [0, 4, 100, -1, -8])
def test_truncated_part_is_not_finished(run, cut: int) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    path.write_bytes(path.read_bytes()[:cut])
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_part_with_broken_footer_is_not_finished(run) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    data = bytearray(path.read_bytes())
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[begin : begin + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


@pytest.mark.parametrize("telemetry", [{"run_id": "another"}, {"shard": 1}, {"rows": 1}, {"attempt": {}, "ttft": 3}])
def test_part_with_foreign_telemetry_is_not_finished(run, telemetry: dict[str, object]) -> None:
    folder, manifest = run
    republish(Path(folder.file(folder.part_name(0))), **telemetry)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_part_without_one_row_is_not_finished(run) -> None:
    folder, manifest = run
    republish(Path(folder.file(folder.part_name(0))), rows=manifest.shards[0].rows - 1)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None


def test_other_parquet_file_is_not_finished(run) -> None:
    folder, manifest = run
    path = Path(folder.file(folder.part_name(0)))
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert done_record(folder, manifest.shards[0], manifest.run_id) is None
    assert 0 not in read_ledger(folder, manifest.shards, manifest.run_id)
