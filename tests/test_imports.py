"""Imports that a start waits for: each part loads the heavy libraries late, or never."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Prints, for each stage of a start, which of the heavy libraries are imported by then.
STAGES = """
import json, sys
from contextlib import contextmanager

HEAVY = {"torch", "transformers", "triton", "ray", "pyarrow", "pydantic", "pandas", "scipy", "matplotlib", "jinja2"}
stages = {}

def record(stage):
    stages[stage] = sorted(HEAVY & set(sys.modules))

import specpipe
record("package")
from specpipe.cli.main import main
record("help")
from specpipe.pipeline.cluster.backend import RayBackend
from specpipe.pipeline.cluster.placement import Placement

@contextmanager
def connect(self, job):
    record("before Ray")
    yield Placement(workers=1, device="cpu", cpus=1.0)

class Pool:
    def spawn(self, name):
        record("first worker")
        print(json.dumps(stages))
        sys.stdout.flush()
        raise SystemExit

RayBackend.connect = connect
RayBackend.pool = lambda self, config, placement: Pool()
RayBackend.watcher = lambda self, config: lambda progress: None
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Heavy libraries that are imported, by stage of `specpipe run`."""
    out = tmp_path_factory.mktemp("imports") / "out"
    command = [sys.executable, "-c", STAGES, "run", str(ROOT / "jobs/sharegpt.yaml"), "--set", f"output.path={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    found: dict[str, list[str]] = json.loads(lines[0])
    return found


@pytest.mark.parametrize("stage", ["package", "help"])
def test_package_and_help_import_no_heavy_library(stages: dict[str, list[str]], stage: str) -> None:
    assert stages[stage] == []


def test_driver_starts_ray_before_any_library_it_needs_later(stages: dict[str, list[str]]) -> None:
    assert stages["before Ray"] == ["pyarrow", "pydantic"]


def test_driver_of_a_new_run_imports_neither_torch_nor_pandas(stages: dict[str, list[str]]) -> None:
    assert stages["first worker"] == ["pyarrow", "pydantic"]
