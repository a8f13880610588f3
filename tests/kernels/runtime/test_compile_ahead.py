"""`CompileAhead` compiles exactly the kernels that rounds and prefills launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "compile_ahead.py"


@pytest.mark.slow
def test_no_kernel_is_left_to_compile_after_compile_ahead(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    result = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["ahead"] > 15
    assert found["later"] == []
    assert len(found["others"]) == 1 and "launcher" in found["others"][0], "another thread's launch was skipped"
    assert min(found["found"].values()) > 3, "every family, method and weight format can be rehearsed without memory"
