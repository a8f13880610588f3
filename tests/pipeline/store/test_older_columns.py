"""Runs whose parts were written before an output column was added: resumed, retried and verified."""

import json
from pathlib import Path

import pyarrow.parquet as pq
from support.fake_workers import InProcessBackend, make_job, outputs, write_rows

from specpipe.data import publish_part, read_part_footer
from specpipe.data.columns import ADDED_COLUMNS
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify


def make_older(run: Path) -> None:
    """Removes the added columns from the parts and the manifest of a run."""
    for path in sorted((run / "outputs").iterdir()):
        footer = read_part_footer(str(path))
        assert footer is not None
        table = pq.read_table(path).drop_columns(list(ADDED_COLUMNS)).replace_schema_metadata()
        publish_part(str(path), table, shard_hash=footer.shard_hash, telemetry=footer.telemetry)
    content = json.loads((run / "manifest.json").read_text())
    content["columns"] = [name for name in content["columns"] if name not in ADDED_COLUMNS]
    (run / "manifest.json").write_text(json.dumps(content))


def test_run_of_an_older_version_is_continued_and_verified(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 12, r1="BAD")
    job = make_job(tmp_path, "output.max_failed_rows=1")
    execute(job, backend=InProcessBackend())
    before = outputs(tmp_path / "out")
    make_older(tmp_path / "out")
    sorted((tmp_path / "out/outputs").iterdir())[-1].unlink()
    assert execute(job, backend=InProcessBackend(), retry_failed=True).state == "complete"
    verification = verify(str(tmp_path / "out"))
    assert verification.exit_code in (0, 3) and not [f for f in verification.findings if f.kind == "wrong"]
    parts = [pq.read_table(path) for path in sorted((tmp_path / "out/outputs").iterdir())]
    ids = [row for part in parts for row in part["generated_token_ids"].to_pylist()]
    assert ids == before["generated_token_ids"].to_pylist()
