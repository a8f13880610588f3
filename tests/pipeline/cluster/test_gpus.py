"""Tests of counting visible GPUs."""

import glob

import pytest

from specpipe.pipeline.gpus import visible_gpus


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
