"""What every test wants. Without a GPU the Triton kernels run in Triton's interpreter, which must be chosen before
anything imports Triton, torch's compiler among others."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the cache folder of whoever runs the tests."""
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
