"""GPUs of this machine: their number and memory."""

import glob
from pathlib import Path

import pytest

from specpipe.pipeline.gpus import gpu_memory, visible_gpus


@pytest.mark.parametrize(
    ("chosen", "count"),
    [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("2, 3", 2), ("0,-1,2", 1), ("GPU-8a1b,GPU-77", 2), ("0,1,2,3,4,5", 4)],
)
def test_visible_gpus_follow_cuda_visible_devices(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, count: int
) -> None:
    monkeypatch.setattr(glob, "glob", lambda _: [f"/dev/nvidia{i}" for i in range(4)])
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == count


def test_memory_is_that_of_the_smallest_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory() == 0
    for answer, expected in (("143771\\n81559", 81559 << 20), ("[N/A]", 0), ("", 0)):
        tool.write_text(f"#!/bin/sh\nprintf '{answer}\\n'\n")
        tool.chmod(0o755)
        assert gpu_memory() == expected
