"""`verify` finds what is wrong, and nothing where nothing is."""

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
    """A copy to break, whose inputs are the original's."""
    return Path(shutil.copytree(finished / "out", tmp_path / "out"))


def part(run: Path, shard: int) -> Path:
    return run / f"outputs/part-{shard:05d}.parquet"


def rewrite(run: Path, shard: int, table: pa.Table, **telemetry: object) -> None:
    """Replace a part, footer and all: what only a bug, or somebody's hand, would do."""
    footer = read_part_footer(str(part(run, shard)))
    assert footer is not None
    told = {**footer.telemetry, **telemetry}
    publish_part(str(part(run, shard)), table, shard_hash=footer.shard_hash, telemetry=told)


def said(found: Verification) -> str:
    return "\n".join(map(str, found.findings))


@pytest.mark.parametrize("fast", [False, True])
def test_a_finished_run_is_proven_complete(run: Path, fast: bool) -> None:
    found = verify(str(run), fast=fast)
    assert (said(found), found.complete, found.exit_code) == ("", True, 0)
    assert (found.verified_rows, found.rows, found.failed_rows) == (24, 24, 1)
    assert json.loads(json.dumps(found.to_dict()))["complete"] is True


def test_samples_are_proven_one_by_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 9, r5=None)
    execute(make_job(tmp_path, "sampling.n=3", "output.max_failed_rows=3"), backend=InProcessBackend())
    run = tmp_path / "out"
    found = verify(str(run))
    assert (said(found), found.verified_rows, found.failed_rows) == ("", 27, 3)
    table = pq.read_table(part(run, 0))
    swapped = table.take([1, 0, *range(2, table.num_rows)])
    rewrite(run, 0, swapped)
    assert "row 0: sample is 1; expected 0" in said(verify(str(run)))
    doubled = swapped.set_column(table.column_names.index("sample"), table.schema.field("sample"), table["sample"])
    rewrite(run, 0, doubled)
    assert "row 0: seed is " in said(verify(str(run)))


def test_a_missing_part_is_named_with_its_rows(run: Path) -> None:
    part(run, 2).unlink()
    found = verify(str(run))
    assert found.exit_code == 3
    (finding,) = found.findings
    assert (finding.shard, finding.kind) == (2, "missing")
    assert "part-00002.parquet is not there (rows " in finding.text
    assert found.verified_shards == found.shards - 1


@pytest.mark.parametrize("cut", [0, 30, -1, -300])
def test_a_torn_part_is_found(run: Path, cut: int) -> None:
    part(run, 1).write_bytes(part(run, 1).read_bytes()[:cut])
    found = verify(str(run))
    assert found.exit_code == 1
    assert "shard 1: " in said(found) and "torn" in said(found)


def test_a_flipped_byte_is_found_unless_the_rows_are_whole_without_it(run: Path) -> None:
    whole, rows, harmless = part(run, 0).read_bytes(), pq.read_table(part(run, 0)), 0
    for at in range(0, len(whole), len(whole) // 60):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        part(run, 0).write_bytes(bytes(broken))
        if verify(str(run), fast=True).exit_code != 1:
            harmless += 1
            assert pq.read_table(part(run, 0)).equals(rows), f"byte {at} of {len(whole)}"
    assert harmless < 45  # most of these bytes are names and statistics in the footer


def test_a_damaged_page_is_found_without_reading_inputs(run: Path) -> None:
    broken = bytearray(part(run, 3).read_bytes())
    broken[120] ^= 1
    part(run, 3).write_bytes(bytes(broken))
    assert "part-00003.parquet is damaged: " in said(verify(str(run), fast=True))


def test_rows_in_another_order_are_named(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.take([1, 0, *range(2, table.num_rows)]))
    found = verify(str(run))
    assert [(finding.shard, finding.row) for finding in found.findings if finding.row is not None] == [(1, 0), (1, 1)]
    assert "the input row is" in said(found)


def test_a_row_that_is_there_twice_is_found(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.take([0, 0, *range(2, table.num_rows)]))
    assert any(finding.row == 1 for finding in verify(str(run)).findings)


def test_a_part_that_is_short_of_a_row_is_found(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.slice(1))
    assert f"the part has {table.num_rows - 1} rows; expected {table.num_rows}" in said(verify(str(run)))


def test_the_part_of_another_shard_is_found(run: Path) -> None:
    shutil.copy(part(run, 0), part(run, 1))
    assert "belongs to shard 0 of run" in said(verify(str(run)))


def test_a_seed_that_is_not_the_rows_is_found(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    seeds = [7, *table["seed"].to_pylist()[1:]]
    index = table.schema.get_field_index("seed")
    rewrite(run, 1, table.set_column(index, table.schema.field("seed"), pa.array(seeds, pa.int64())))
    assert "shard 1, row 0: seed is 7; expected " in said(verify(str(run)))


def test_log_probabilities_of_another_number_of_tokens_are_found(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    index = table.schema.get_field_index("generated_logprobs")
    cells = [[-0.5], *[None] * (table.num_rows - 1)]
    field = table.schema.field("generated_logprobs")
    rewrite(run, 1, table.set_column(index, field, pa.array(cells, field.type)))
    assert "shard 1, row 0: log-probabilities of 1 tokens, and " in said(verify(str(run)))


def test_a_column_that_is_gone_is_found(run: Path) -> None:
    table = pq.read_table(part(run, 1))
    rewrite(run, 1, table.drop_columns(["tag"]))
    assert "shard 1: the columns are request_id, " in said(verify(str(run)))


@pytest.mark.parametrize("field", ["output_tokens", "failed_rows", "recovered_tokens", "draft_tokens", "busy_s"])
def test_telemetry_that_does_not_add_up_is_found(run: Path, field: str) -> None:
    footer = read_part_footer(str(part(run, 1)))
    assert footer is not None
    rewrite(run, 1, pq.read_table(part(run, 1)), **{field: footer.telemetry[field] + 1})  # type: ignore[operator]
    assert "shard 1: telemetry does not add up" in said(verify(str(run)))


def test_totals_that_differ_from_the_parts_are_found(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "total_output_tokens": 1}))
    shards = pq.read_table(run / "telemetry/shards.parquet")
    pq.write_table(shards.slice(1), run / "telemetry/shards.parquet")
    text = said(verify(str(run)))
    assert "summary.json: total_output_tokens is 1, and the parts sum to" in text
    assert "shards.parquet differs from what stands in the parts' footers" in text


def test_a_file_that_readers_would_take_for_rows_is_found(run: Path) -> None:
    shutil.copy(part(run, 0), run / "outputs/part-00000-copy.parquet")
    (run / "outputs/.attempt-9-part-00000.parquet").write_bytes(b"what a crash left")
    found = verify(str(run))
    assert [str(finding) for finding in found.findings] == [
        "outputs/part-00000-copy.parquet belongs to no shard of this run; its rows would be read as outputs"
    ]


def test_an_edited_manifest_is_found(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["identity"]["sampling.temperature"] = 0.7
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "manifest.json was changed" in said(verify(str(run)))


@pytest.mark.parametrize("shards", [slice(1, None), slice(0, -1)])
def test_shards_that_do_not_cover_the_dataset_are_found(run: Path, shards: slice) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["shards"] = manifest["shards"][shards]
    (run / "manifest.json").write_text(json.dumps(manifest))
    text = said(verify(str(run)))
    assert "does not follow the one before it" in text or "the shards cover " in text


def test_an_input_that_has_changed_is_found_by_its_rows_and_when_fast_by_its_time(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    out = str(tmp_path / "out")
    write_rows(tmp_path / "rows.parquet", 24)  # the same rows at another time
    assert verify(out).complete
    assert "mtime_ns was" in said(verify(out, fast=True))
    write_rows(tmp_path / "rows.parquet", 24, r9="prompt X")
    (finding,) = verify(out).findings
    assert "hashes differ" in finding.text
    (tmp_path / "rows.parquet").unlink()
    assert "rows.parquet cannot be read again" in said(verify(out))


def test_more_failed_rows_than_allowed_are_exit_code_3(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 8, r2=None)
    execute(make_job(tmp_path), backend=InProcessBackend())
    found = verify(str(tmp_path / "out"))
    assert (found.complete, found.failed_rows, found.exit_code) == (True, 1, 3)


def test_findings_about_a_shards_rows_are_few(run: Path) -> None:
    table = pq.read_table(part(run, 0))
    errors = pa.array(["x"] * table.num_rows)
    rewrite(run, 0, table.set_column(table.schema.get_field_index("error"), table.schema.field("error"), errors))
    found = [finding for finding in verify(str(run)).findings if finding.shard == 0 and finding.row is not None]
    assert 0 < len(found) <= 5


def test_what_is_no_run_or_is_live_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is not a specpipe run"):
        verify(str(tmp_path))
    with RunLock(run / ".specpipe/lock"), pytest.raises(OutputError, match="written by a live run"):
        verify(str(run))


def test_a_run_whose_driver_died_after_its_last_part_gets_its_summary_at_the_next_start(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    (tmp_path / "out/summary.json").unlink()
    assert verify(str(tmp_path / "out")).exit_code == 3
    assert execute(job, backend=InProcessBackend()).state == "already complete"
    assert verify(str(tmp_path / "out")).complete
