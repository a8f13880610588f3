"""Imports inside the engine go one way: device, state, forward, proposers, rounds, then the engine's own modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "specpipe/engine"
ORDER = ["device", "state", "forward", "loading", "proposers", "rounds"]


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    allowed = set(ORDER[: ORDER.index(package) + 1])
    for path in (ENGINE / package).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specpipe.engine"):
                assert node.module.split(".")[2] in allowed, f"{path.name} imports {node.module}"
