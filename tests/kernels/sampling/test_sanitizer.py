"""Sampling kernels pass compute-sanitizer: no invalid memory access and no race."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ROUNDS = [sys.executable, "-m", "support.sanitize"]
ENDED = "all rounds are as expected"


def run(command: list[str], seconds: float, **environment: str) -> tuple[int, str]:
    """Returns exit status and output; kills the process group after `seconds`."""
    paths = os.pathsep.join([str(TESTS), *sys.path])
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths} | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nkilled after {seconds} s"
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sanitizer_rounds_pass_on_the_interpreter() -> None:
    status, output = run([*ROUNDS, "cpu"], 390, TRITON_INTERPRET="1")
    assert status == 0 and ENDED in output, output[-3000:]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="compute-sanitizer is not on PATH")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_reports_nothing(tool: str) -> None:
    compiled, output = run([*ROUNDS, "cuda"], 300)  # into Triton's cache: the tool need not watch compilers
    assert compiled == 0, output[-3000:]
    watched = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", *ROUNDS, "cuda"]
    status, output = run(watched, 300, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert status == 0 and ENDED in output, output[-5000:]
