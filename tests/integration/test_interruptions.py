"""A driver process that is killed or interrupted: a later start resumes the run, and no row is lost or doubled."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job, outputs, wait_for

from specpipe.errors import OutputError
from specpipe.job import load_job
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.worker.build import build_parts

WriteJob = Callable[..., Path]
LONG = {"max_new_tokens": 150, "ignore_eos": True}
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", ROOT / "tests")))


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
    """Runs the job with the real engine in this process, where torch is imported already."""
    return execute(load_job(job, overrides), backend=InProcessBackend(build_parts=build_parts))


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "outputs").glob("part-*.parquet"))


def check_whole(folder: Path, reference: Path) -> None:
    got, expected = outputs(folder), outputs(reference)
    assert got["request_id"].to_pylist() == [str(i) for i in range(got.num_rows)]
    assert got["generated_token_ids"] == expected["generated_token_ids"]


DRIVER = """
import sys, time
from functools import partial
from pathlib import Path
from support.fake_workers import InProcessBackend, fake_parts, make_job
from specpipe.pipeline.run.run import execute

execute(make_job(Path(sys.argv[1]), rows=80), backend=InProcessBackend(build_parts=partial(fake_parts, step_s=0.01)))
"""
"""A driver with fake engines, slow enough to be killed halfway."""


def test_killed_driver_is_resumed_at_once_with_the_same_tokens(tmp_path: Path) -> None:
    job = make_job(tmp_path, rows=80)
    live = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env={**os.environ, "PYTHONPATH": PATHS})
    try:
        wait_for(lambda: len(parts(tmp_path / "out")) >= 2 or live.poll() is not None, 120)
        with pytest.raises(OutputError, match=f"live run \\(pid {live.pid} "):
            execute(job, backend=InProcessBackend())
    finally:
        live.kill()
        live.wait()
    check_resumed(tmp_path, lambda *overrides: execute(make_job(tmp_path, *overrides), backend=InProcessBackend()))


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_killed_command_is_resumed_at_once_with_the_same_tokens(
    write_job: WriteJob, tmp_path: Path, whole_group: bool
) -> None:
    """Real engines on Ray; `whole_group`: Ray and the workers are killed with the driver."""
    job = write_job(sampling=LONG, workers={"shard_tokens": 400})
    live = start(job)
    try:
        wait_for(lambda: len(parts(tmp_path / "out")) >= 2 or live.poll() is not None, 120)
        with pytest.raises(OutputError, match=f"live run \\(pid {live.pid} "):
            run_here(job)
    finally:
        if whole_group:
            os.killpg(live.pid, signal.SIGKILL)
        live.kill()  # the driver alone, before it can stop its workers
        live.communicate()
    check_resumed(tmp_path, lambda *overrides: run_here(job, *overrides))


def check_resumed(folder: Path, run: Callable[..., RunResult]) -> None:
    """Resumes the run in `folder`: published parts stay as they are, and all tokens are those of an undisturbed run."""
    before = {part.name: part.stat().st_mtime_ns for part in parts(folder / "out")}
    result = run()
    assert (result.state, result.summary["starts"]) == ("complete", 2)
    assert 2 <= len(before) < result.summary["total_shards"]
    assert before.items() <= {part.name: part.stat().st_mtime_ns for part in parts(folder / "out")}.items()
    run(f"output.path={folder / 'whole'}", "speculation.policy=off")
    check_whole(folder / "out", folder / "whole")


@pytest.mark.slow
def test_one_interrupt_drains_two_abort_and_both_resume(write_job: WriteJob, tmp_path: Path) -> None:
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
