"""Real Ray, real models, real files."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.fake_workers import InProcessBackend, outputs
from support.ray_workers import RayWorkers

from specpipe.cli.main import main
from specpipe.job import load_job
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

pytestmark = pytest.mark.usefixtures("ray_session")
WriteJob = Callable[..., Path]
ROWS = 24


def tokens(folder: Path) -> list[list[int]]:
    table = outputs(folder)
    assert table["request_id"].to_pylist() == [str(i) for i in range(table.num_rows)]
    assert set(table["error"].to_pylist()) == {""}
    return table["generated_token_ids"].to_pylist()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_command_writes_what_plain_decoding_writes(write_job: WriteJob, tmp_path: Path, workers: int) -> None:
    """Through the command, Ray and real engines; one prompt exceeds the context: a row with an error, exit code 3."""
    prompts = [*(f"What is {i} plus {i % 7}?" for i in range(ROWS)), "word " * 2000]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "rows.parquet")
    path = write_job(workers={"count": workers})

    shown = CliRunner().invoke(main, ["run", str(path)])
    assert (shown.exit_code, shown.stderr) == (3, "")
    assert f"{ROWS + 1} of {ROWS + 1}, 1 failed" in shown.stdout
    assert "output.max_failed_rows is 0." in shown.stdout
    *rows, failed = outputs(tmp_path / "out").to_pylist()
    assert (failed["finish_reason"], failed["num_generated_tokens"]) == ("error", 0)
    assert "tokens; expected at most" in failed["error"]
    allowed = CliRunner().invoke(main, ["run", str(path), "--set", "output.max_failed_rows=1"])
    assert allowed.exit_code == 0 and "already complete" in allowed.stdout

    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["spec_decode_acceptance_length"] > 1.5  # the draft is a noisy copy of the target
    assert summary["total_output_tokens"] == sum(len(row["generated_token_ids"]) for row in rows)
    assert sum(worker["shards"] for worker in summary["workers"].values()) == summary["total_shards"]
    plain = [f"output.path={tmp_path / 'plain'}", "speculation.policy=off", "workers.slots=7", f"data.limit={ROWS}"]
    here = InProcessBackend(build_parts=build_parts)
    again = execute(load_job(path, [*plain, "workers.shard_tokens=400"]), backend=here)
    assert again.summary["spec_decode_num_drafts"] == 0
    assert tokens(tmp_path / "plain") == [row["generated_token_ids"] for row in rows]


def records_pids(folder: Path) -> Callable[[WorkerConfig], WorkerParts]:
    """Returns a `build_parts` that leaves a file named after its process in the folder."""

    def build(config: WorkerConfig) -> WorkerParts:
        (folder / str(os.getpid())).touch()
        return build_parts(config)

    return build


@pytest.mark.slow
def test_run_with_a_killed_worker_process_loses_no_row(write_job: WriteJob, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        if progress.published_shards and not killed:
            killed.extend(int(file.name) for file in pids.iterdir())
            os.kill(killed[0], signal.SIGKILL)

    path = write_job(sampling={"max_new_tokens": 120})
    backend = RayWorkers(records_pids(pids))
    result = execute(load_job(path), viewer=Viewer(progress=kill_one), backend=backend)
    assert len(killed) == 1
    assert (result.state, len(list(pids.iterdir()))) == ("complete", 2)
    assert set(result.summary["workers"]) == {"worker-0", "worker-0.2"}
    tokens(tmp_path / "out")
