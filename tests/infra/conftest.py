"""Fixtures: the folder infra/ and the version of Ray in its image."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def infra() -> Path:
    return ROOT / "infra"


@pytest.fixture(scope="session")
def ray_version() -> str:
    """Version of Ray that the image installs."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("ray==") for line in lines if line.startswith("ray=="))
