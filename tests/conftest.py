"""Set-up of all tests: Triton's mode, a cache folder of their own, and their distribution over processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Without a GPU kernels run in Triton's interpreter. Triton reads this at its import, by torch's compiler too.
    os.environ.setdefault("TRITON_INTERPRET", "1")

TESTS = Path(__file__).parent
LONGEST_FIRST = ("integration", "kernels", "engine", "evaluation", "pipeline")
"""Folders with the longest tests. Started first, they leave short ones to fill the end of a parallel run."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets SPECPIPE_CACHE, so that the user's cache folder is neither read nor written."""
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders tests: the longest folders first, and in the first of them the tests on Ray."""
    folders = {name: rank for rank, name in enumerate(LONGEST_FIRST)}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        folder = folders.get(item.path.relative_to(TESTS).parts[0], len(folders))
        return folder, "ray_session" not in getattr(item, "fixturenames", ())

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Runs each file in one process under `--dist loadfile`, and all integration tests in one: one Ray serves them.

    The mark `xdist_group` cannot do that: xdist 3.8 ignores it under pytest 9.2.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "integration" if file.startswith("tests/integration/") else file

    return Scheduler(config, log)
