"""Set-up of all tests: Triton's mode, a cache folder of their own, and their distribution over processes."""

from __future__ import annotations

import os
from pathlib import Path

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders tests, longest folders first, and groups them for `--dist loadgroup`: a group runs in one process.

    A file is a group, so that its module fixtures are built once. All tests on Ray are one group: one Ray serves them.
    """
    folders = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    on_ray = {item for item in items if "ray_session" in getattr(item, "fixturenames", ())}

    def rank(item: pytest.Item) -> tuple[bool, int]:
        return item not in on_ray, folders.get(item.path.relative_to(TESTS).parts[0], len(folders))

    items.sort(key=rank)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group("ray" if item in on_ray else str(item.path)))
