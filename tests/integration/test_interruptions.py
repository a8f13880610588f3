"""The command in a process of its own, killed and interrupted; the run goes on without a row lost or doubled."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, outputs, wait_for

from specpipe.errors import OutputError
from specpipe.job import load_job
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.worker.build import build_parts

WriteJob = Callable[..., Path]
LONG = {"max_new_tokens": 150, "ignore_eos": True}


def start(job: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "specpipe", "run", str(job)],
        start_new_session=True,
        cwd=job.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_here(job: Path, *overrides: str) -> RunResult:
    """The real engine in this process: torch is imported here already."""
    return execute(load_job(job, overrides), backend=InProcessBackend(build_parts=build_parts))


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "outputs").glob("part-*.parquet"))


def check_whole(folder: Path, reference: Path) -> None:
    got, expected = outputs(folder), outputs(reference)
    assert got["request_id"].to_pylist() == [str(i) for i in range(got.num_rows)]
    assert got["generated_token_ids"] == expected["generated_token_ids"]


@pytest.mark.parametrize("whole_group", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_driver_is_resumed_at_once_with_the_same_tokens(
    write_job: WriteJob, tmp_path: Path, whole_group: bool
) -> None:
    job = write_job(sampling=LONG, workers={"shard_tokens": 400})
    live = start(job)
    try:
        wait_for(lambda: len(parts(tmp_path / "out")) >= 2 or live.poll() is not None, 120)
        with pytest.raises(OutputError, match=f"live run \\(pid {live.pid} "):
            run_here(job)
    finally:
        if whole_group:
            os.killpg(live.pid, signal.SIGKILL)
        live.kill()  # the driver alone, without a chance to tell its workers
        live.communicate()
    before = {part.name: part.stat().st_mtime_ns for part in parts(tmp_path / "out")}
    result = run_here(job)
    assert (result.state, result.summary["starts"]) == ("complete", 2)
    assert 2 <= len(before) < result.summary["total_shards"]
    assert before.items() <= {part.name: part.stat().st_mtime_ns for part in parts(tmp_path / "out")}.items()
    run_here(job, f"output.path={tmp_path / 'whole'}", "speculation.policy=off")
    check_whole(tmp_path / "out", tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_drains_and_ctrl_c_twice_aborts_and_both_resume(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job(sampling=LONG, workers={"shard_tokens": 400})
    run_here(job, f"output.path={tmp_path / 'whole'}")

    live = start(job)
    wait_for(lambda: parts(tmp_path / "out") or live.poll() is not None, 120)
    os.killpg(live.pid, signal.SIGINT)  # as a terminal does: to the workers too
    out, errors = live.communicate(timeout=120)
    assert (live.returncode, errors) == (130, "")
    assert "interrupted" in out
    drained = len(parts(tmp_path / "out"))

    live = start(job)
    wait_for(lambda: len(parts(tmp_path / "out")) > drained or live.poll() is not None, 120)
    os.killpg(live.pid, signal.SIGINT)
    os.killpg(live.pid, signal.SIGINT)
    _, errors = live.communicate(timeout=120)
    assert live.returncode == 130
    assert "Traceback" not in errors

    result = run_here(job)
    assert (result.state, result.summary["starts"]) == ("complete", 3)
    check_whole(tmp_path / "out", tmp_path / "whole")
