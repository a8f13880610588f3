"""The wheel in a new environment outside the repository, beside PyPI's package `kernels`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
_UNREACHABLE = ("No matching distribution found", "Temporary failure in name resolution", "Connection")


def run(*command: object, cwd: Path) -> str:
    """Runs a command without this checkout on its paths. Returns its standard output."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode and "pip" in command and any(words in done.stderr for words in _UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Interpreter of a new environment with the wheel and `kernels`; dependencies come from the present one."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob("specpipe-*.whl")
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    found = home / "bin/python"
    run(*pip, "--python", found, "install", "--no-deps", "--no-compile", wheel, "kernels", cwd=tmp_path)
    packages = Path(run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # a plain path: the .pth files of that folder, which lead to this checkout, are not read
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return found


def test_wheel_works_beside_the_kernels_package_of_pypi(python: Path, tmp_path: Path) -> None:
    code = (
        "import kernels, specpipe, specpipe_kernels as ours; print(kernels.__file__, specpipe.__file__, ours.__file__)"
    )
    for path in run(python, "-c", code, cwd=tmp_path).split():
        assert path.startswith(str(python.parents[1]))
    command = python.parent / "specpipe"
    run(command, "init", "job.yaml", cwd=tmp_path)
    small = ["--limit", 4, "--set", "sampling.max_new_tokens=8", "--set", "output.path=run"]
    assert "4 of 4" in run(command, "run", "job.yaml", *small, cwd=tmp_path)
    summary = json.loads(run(command, "show", "run", "--json", cwd=tmp_path))
    assert (summary["state"], summary["completed"]) == ("complete", 4)
    assert "<svg" in (tmp_path / "run/report.html").read_text(encoding="utf-8")
