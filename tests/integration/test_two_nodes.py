"""A node dies with its worker; the run finishes on the other node and loses no row."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, outputs
from support.two_nodes import two_node_job

from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify

TESTS, ROWS = str(Path(__file__).parents[1]), 2400


@pytest.mark.slow
def test_run_finishes_on_the_second_node_after_one_dies(tmp_path: Path) -> None:
    path = os.pathsep.join([TESTS, *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "support.two_nodes", str(tmp_path), str(ROWS)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is lost: the worker's process died" in done.stderr
    found = verify(str(tmp_path / "out"))
    assert found.complete, "\n".join(map(str, found.findings))
    execute(two_node_job(tmp_path, ROWS, f"output.path={tmp_path / 'calm'}"), backend=InProcessBackend())
    assert outputs(tmp_path / "out")["generated_token_ids"] == outputs(tmp_path / "calm")["generated_token_ids"]
