"""One prompt beyond the context costs one row and an exit code, seen through the command and real workers."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.fake_workers import outputs

from specpipe.cli.main import main


@pytest.mark.usefixtures("ray_session")
def test_it_is_a_row_with_an_error_and_exit_code_3(write_job: Callable[..., Path], tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["Short.", "word " * 2000, "Also short."]}), tmp_path / "rows.parquet")
    job = write_job(sampling={"max_new_tokens": 5})

    shown = CliRunner().invoke(main, ["run", str(job)])

    assert (shown.exit_code, shown.stderr) == (3, "")
    assert "3 of 3, 1 failed" in shown.stdout
    assert "1 row failed and output.max_failed_rows is 0." in shown.stdout
    rows = outputs(tmp_path / "out").to_pylist()
    assert [row["finish_reason"] for row in rows] == ["length", "error", "length"]
    assert "tokens; expected at most" in rows[1]["error"]
    assert [row["num_generated_tokens"] for row in rows] == [5, 0, 5]

    allowed = CliRunner().invoke(main, ["run", str(job), "--set", "output.max_failed_rows=1"])
    assert allowed.exit_code == 0 and "already complete" in allowed.stdout
