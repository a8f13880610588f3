"""`specpipe show --follow` in one process and a real run in another."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_workers import wait_for

pytestmark = pytest.mark.slow
WriteJob = Callable[..., Path]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "specpipe", *map(str, arguments)],
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(900)  # two starts of Ray and four interpreters: minutes beside other tests
def test_follower_reports_the_end_of_finished_and_killed_runs(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job(sampling={"max_new_tokens": 150, "ignore_eos": True}, workers={"shard_tokens": 400})
    progress = tmp_path / "out/telemetry/progress.json"
    live = start("run", job)
    try:
        wait_for(lambda: progress.exists() or live.poll() is not None, 250)
        follower = start("show", tmp_path / "out", "--follow")
        wait_for(lambda: list((tmp_path / "out/outputs").glob("part-*")) or live.poll() is not None, 250)
    finally:
        live.kill()
        live.communicate()
    told, errors = follower.communicate(timeout=120)
    assert (follower.returncode, "without recording a final state" in errors) == (1, True), told + errors
    assert "/24 rows · " in told

    again = start("run", job)
    try:
        wait_for(lambda: again.poll() is not None or '"epoch": 2' in progress.read_text(), 250)
        follower = start("show", tmp_path / "out", "--follow")
        assert again.wait(250) == 0
    finally:
        again.kill()
        again.communicate()
    told, errors = follower.communicate(timeout=120)
    assert (follower.returncode, errors) == (0, ""), told
    assert "24 of 24" in told and "complete" in told
