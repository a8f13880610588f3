"""`verify` reports each kind of defect, and nothing for a valid run."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job, write_rows

from specpipe.data import publish_part, read_part_footer
from specpipe.errors import OutputError
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.lock import RunLock
from specpipe.pipeline.store.verification import Verification
from specpipe.pipeline.store.verify import verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 rows in shards of three, one row of it failed."""
    folder = tmp_path_factory.mktemp("finished")
    write_rows(folder / "rows.parquet", 24, r5=None)
    execute(make_job(folder, "output.max_failed_rows=1", "output.keep_columns=[tag]"), backend=InProcessBackend())
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage, with the inputs of the original."""
    return Path(shutil.copytree(finished / "out", tmp_path / "out"))


def part(run: Path, shard: int) -> Path:
    return run / f"outputs/part-{shard:05d}.parquet"


def rewrite(run: Path, shard: int, table: pa.Table, **telemetry: object) -> None:
    """Replaces a part with its footer, as only a bug or a manual edit would."""
    footer = read_part_footer(str(part(run, shard)))
    assert footer is not None
    changed = {**footer.telemetry, **telemetry}
    publish_part(str(part(run, shard)), table, shard_hash=footer.shard_hash, telemetry=changed)


def texts(found: Verification) -> str:
    return "\n".join(map(str, found.findings))


@pytest.mark.parametrize("fast", [False, True])
def test_finished_run_is_proven_complete(run: Path, fast: bool) -> None:
    found = verify(str(run), fast=fast)
    assert (texts(found), found.complete, found.exit_code) == ("", True, 0)
    assert (found.verified_rows, found.rows, found.failed_rows) == (24, 24, 1)
    assert json.loads(json.dumps(found.to_dict()))["complete"] is True


def test_samples_are_checked_one_by_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 9, r5=None)
    execute(make_job(tmp_path, "sampling.n=3", "output.max_failed_rows=3"), backend=InProcessBackend())
    run = tmp_path / "out"
    found = verify(str(run))
    assert (texts(found), found.verified_rows, found.failed_rows) == ("", 27, 3)
    table = pq.read_table(part(run, 0))
    swapped = table.take([1, 0, *range(2, table.num_rows)])
    rewrite(run, 0, swapped)
    assert "row 0: sample is 1; expected 0" in texts(verify(str(run)))
    doubled = swapped.set_column(table.column_names.index("sample"), table.schema.field("sample"), table["sample"])
    rewrite(run, 0, doubled)
    assert "row 0: seed is " in texts(verify(str(run)))


def test_missing_part_is_reported_with_its_rows(run: Path) -> None:
    part(run, 2).unlink()
    found = verify(str(run))
    assert found.exit_code == 3
    (finding,) = found.findings
    assert (finding.shard, finding.kind) == (2, "missing")
    assert "part-00002.parquet does not exist (rows " in finding.text
    assert found.verified_shards == found.shards - 1


@pytest.mark.parametrize("cut", [0, 30, -1, -300])
def test_truncated_part_is_reported(run: Path, cut: int) -> None:
    part(run, 1).write_bytes(part(run, 1).read_bytes()[:cut])
    found = verify(str(run))
    assert found.exit_code == 1
    assert "shard 1: " in texts(found) and "truncated" in texts(found)


@pytest.mark.parametrize("positions", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_flipped_byte_is_reported_unless_rows_are_unaffected(run: Path, positions: int) -> None:
    original, rows, harmless = part(run, 0).read_bytes(), pq.read_table(part(run, 0)), 0
    for at in range(0, len(original), len(original) // positions):
        broken = bytearray(original)
        broken[at] ^= 0x10
        part(run, 0).write_bytes(bytes(broken))
        if verify(str(run), fast=True).exit_code != 1:
            harmless += 1
            assert pq.read_table(part(run, 0)).equals(rows), f"byte {at} of {len(original)}"
    assert harmless < 0.75 * positions  # most of these bytes are names and statistics in the footer


def test_damaged_page_is_reported_without_reading_inputs(run: Path) -> None:
    broken = bytearray(part(run, 3).read_bytes())
    broken[120] ^= 1
    part(run, 3).write_bytes(bytes(broken))
    assert "part-00003.parquet is damaged: " in texts(verify(str(run), fast=True))


def test_swapped_rows_are_reported_by_number(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.take([1, 0, *range(2, table.num_rows)]))
    found = verify(str(run))
    assert [(finding.shard, finding.row) for finding in found.findings if finding.row is not None] == [(1, 0), (1, 1)]
    assert ", the input's" in texts(found)


def test_duplicate_row_is_reported(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.take([0, 0, *range(2, table.num_rows)]))
    assert any(finding.row == 1 for finding in verify(str(run)).findings)


def test_part_without_one_row_is_reported(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.slice(1))
    assert f"the part has {table.num_rows - 1} rows; expected {table.num_rows}" in texts(verify(str(run)))


def test_part_of_another_shard_is_reported(run: Path) -> None:
    shutil.copy(part(run, 0), part(run, 1))
    assert "is shard 0 of run" in texts(verify(str(run)))


def test_wrong_seed_is_reported(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    seeds = [7, *table["seed"].to_pylist()[1:]]
    index = table.schema.get_field_index("seed")
    rewrite(run, 1, table.set_column(index, table.schema.field("seed"), pa.array(seeds, pa.int64())))
    assert "shard 1, row 0: seed is 7; expected " in texts(verify(str(run)))


def test_wrong_number_of_log_probabilities_is_reported(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    index = table.schema.get_field_index("generated_logprobs")
    cells = [[-0.5], *[None] * (table.num_rows - 1)]
    field = table.schema.field("generated_logprobs")
    rewrite(run, 1, table.set_column(index, field, pa.array(cells, field.type)))
    assert "shard 1, row 0: log-probabilities of 1 tokens; expected " in texts(verify(str(run)))


def test_missing_column_is_reported(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.drop_columns(["tag"]))
    assert "shard 1: the columns are request_id, " in texts(verify(str(run)))


@pytest.mark.parametrize("field", ["output_tokens", "failed_rows", "recovered_tokens", "draft_tokens", "busy_s"])
def test_inconsistent_telemetry_is_reported(run: Path, field: str) -> None:
    footer = read_part_footer(str(part(run, 1)))
    assert footer is not None
    rewrite(run, 1, pq.read_table(part(run, 1)), **{field: footer.telemetry[field] + 1})  # type: ignore[operator]
    assert "shard 1: telemetry does not add up" in texts(verify(str(run)))


def test_totals_unequal_to_the_parts_are_reported(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "total_output_tokens": 1}))
    shards = pq.read_table(run / "telemetry/shards.parquet")
    pq.write_table(shards.slice(1), run / "telemetry/shards.parquet")
    text = texts(verify(str(run)))
    assert "summary.json: total_output_tokens is 1; expected " in text
    assert "shards.parquet differs from the parts' footers" in text


def test_extra_file_in_outputs_is_reported(run: Path) -> None:
    shutil.copy(part(run, 0), run / "outputs/part-00000-copy.parquet")
    (run / "outputs/.attempt-9-part-00000.parquet").write_bytes(b"what a crash left")
    found = verify(str(run))
    name, problem = "outputs/part-00000-copy.parquet", "belongs to no shard of this run"
    assert [str(finding) for finding in found.findings] == [
        f"{name} {problem}, but its rows would be read as outputs; delete it"
    ]


def test_edited_manifest_is_reported(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["identity"]["sampling.temperature"] = 0.7
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "manifest.json was changed" in texts(verify(str(run)))


@pytest.mark.parametrize("shards", [slice(1, None), slice(0, -1)])
def test_shards_that_miss_rows_are_reported(run: Path, shards: slice) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["shards"] = manifest["shards"][shards]
    (run / "manifest.json").write_text(json.dumps(manifest))
    text = texts(verify(str(run)))
    assert "does not follow the one before it" in text or "the shards cover " in text


def test_changed_input_is_reported_by_rows_or_fast_by_time(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    out = str(tmp_path / "out")
    write_rows(tmp_path / "rows.parquet", 24)  # the same rows at another time
    assert verify(out).complete
    assert "mtime_ns was" in texts(verify(out, fast=True))
    write_rows(tmp_path / "rows.parquet", 24, r9="prompt X")
    (finding,) = verify(out).findings
    assert "hashes differ" in finding.text
    (tmp_path / "rows.parquet").unlink()
    assert "rows.parquet cannot be read" in texts(verify(out))


def test_more_failed_rows_than_allowed_exit_with_3(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 8, r2=None)
    execute(make_job(tmp_path), backend=InProcessBackend())
    found = verify(str(tmp_path / "out"))
    assert (found.complete, found.failed_rows, found.exit_code) == (True, 1, 3)


def test_findings_per_shard_are_limited(run: Path) -> None:
    table = pq.read_table(part(run, 0))
    errors = pa.array(["x"] * table.num_rows)
    rewrite(run, 0, table.set_column(table.schema.get_field_index("error"), table.schema.field("error"), errors))
    found = [finding for finding in verify(str(run)).findings if finding.shard == 0 and finding.row is not None]
    assert 0 < len(found) <= 5


def test_folder_without_run_and_live_run_raise(run: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is not a specpipe run"):
        verify(str(tmp_path))
    with RunLock(run / ".specpipe/lock"), pytest.raises(OutputError, match="written by a live run"):
        verify(str(run))


def test_next_start_writes_a_missing_summary(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    (tmp_path / "out/summary.json").unlink()
    assert verify(str(tmp_path / "out")).exit_code == 3
    assert execute(job, backend=InProcessBackend()).state == "already complete"
    assert verify(str(tmp_path / "out")).complete
