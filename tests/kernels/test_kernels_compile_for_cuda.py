"""Every kernel compiles for a GPU, seen without one: the interpreter takes what the compiler refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_sm_90() -> None:
    script = Path(__file__).parents[1] / "support" / "compile_only.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for kernel in ("_accept_kernel", "_attention_kernel", "_draw_kernel", "_store_kv_kernel"):
        assert kernel in done.stdout
