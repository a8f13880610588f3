"""A token stays in the environment: neither Ray's runtime environment nor a file of a run contains it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SECRET = "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"

_RUN = """
import sys
import ray
from specpipe.job import load_job
from specpipe.pipeline.cluster.backend import RayBackend
from specpipe.pipeline.run.run import execute

told = []


class Backend(RayBackend):
    def pool(self, config, placement):
        told.append(ray.get_runtime_context().get_runtime_env_string())
        told.append(ray.remote(lambda: ray.get_runtime_context().get_runtime_env_string()).remote())
        told[-1] = ray.get(told[-1])
        return super().pool(config, placement)


result = execute(load_job(sys.argv[1]), backend=Backend())
assert result.state == "complete", result
assert told == ["{}", "{}"], told
"""


@pytest.mark.slow
def test_token_is_in_no_runtime_environment_and_no_file(write_job: Callable[..., Path], tmp_path: Path) -> None:
    environment = {**os.environ, "HF_TOKEN": SECRET}
    command = [sys.executable, "-c", _RUN, str(write_job())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in done.stdout + done.stderr
