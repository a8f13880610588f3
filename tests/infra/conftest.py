"""Where the files of infra/ are, and the versions that they must agree with."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def infra() -> Path:
    return ROOT / "infra"


@pytest.fixture(scope="session")
def ray_version() -> str:
    """The one that the image installs."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("ray==") for line in lines if line.startswith("ray=="))
