"""Import rules: each part imports only the parts below it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VOCABULARY = {"specpipe.__version__", "specpipe.arrays", "specpipe.cache", "specpipe.core", "specpipe.errors"}
# A part and what of ours it may import besides itself: docs/design.md, "Overview".
ALLOWED = {
    "specpipe.arrays": set(),
    "specpipe.cache": set(),
    "specpipe.errors": set(),
    "specpipe.core": {"specpipe.errors"},
    "specpipe.data": VOCABULARY,
    "specpipe.job": VOCABULARY | {"specpipe.data.columns"},
    "specpipe.models": VOCABULARY | {"specpipe_kernels"},
    "specpipe.speculation": VOCABULARY,
    "specpipe.speculation.estimates": VOCABULARY,
    "specpipe.speculation.policies": VOCABULARY | {"specpipe.speculation.estimates"},
    "specpipe.telemetry": VOCABULARY,
    "specpipe.report": VOCABULARY | {"specpipe.speculation", "specpipe.telemetry"},
    "specpipe.engine": VOCABULARY | {"specpipe.models", "specpipe_kernels"},
    "specpipe.pipeline": VOCABULARY
    | {"specpipe.data", "specpipe.engine", "specpipe.job", "specpipe.models", "specpipe.speculation"}
    | {"specpipe.report", "specpipe.telemetry", "specpipe_kernels"},
    "specpipe.doctor": VOCABULARY
    | {"specpipe.data", "specpipe.job", "specpipe.models", "specpipe.pipeline", "specpipe_kernels"},
    # Simulated rounds under the real scheduler, driver and worker steps.
    "specpipe.simulator": VOCABULARY
    | {"specpipe.engine", "specpipe.pipeline", "specpipe.speculation", "specpipe.telemetry"},
    "specpipe.benchmark": VOCABULARY
    | {"specpipe.engine", "specpipe.models", "specpipe.pipeline", "specpipe.speculation", "specpipe.telemetry"}
    | {"specpipe_kernels"},
    "specpipe.evaluation": VOCABULARY
    | {"specpipe.data", "specpipe.engine", "specpipe.job", "specpipe.models", "specpipe.pipeline"}
    | {"specpipe.report", "specpipe.telemetry"},
    "specpipe.api": VOCABULARY | {"specpipe.data", "specpipe.job", "specpipe.pipeline"},
    "specpipe.cli": VOCABULARY
    | {"specpipe.benchmark", "specpipe.data", "specpipe.doctor", "specpipe.evaluation", "specpipe.job"}
    | {"specpipe.pipeline", "specpipe.simulator"},
    "specpipe_kernels": set(),
}
# Packages of the pipeline, and the others that each may import; the modules messages, failures, logs, interrupts
# and tuning serve all of them.
PIPELINE = {
    "store": {"driver.progress"},
    "driver": set(),
    "worker": {"store"},
    "cluster": {"driver.progress", "worker"},
    "run": {"cluster", "driver", "store", "worker"},
}
FOLDERS = {part: ROOT / ("kernels" if part == "specpipe_kernels" else "") / part.replace(".", "/") for part in ALLOWED}


def imports(path: Path) -> Iterator[str]:
    """Names of modules, imports inside functions and under TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            yield from (f"specpipe.{alias.name}" for alias in node.names) if module == "specpipe" else (module,)


def is_within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    folder = FOLDERS[part]
    files = sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]
    ours = [(path, name) for path in files for name in imports(path) if name.startswith(("specpipe", "jobs."))]
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, name in ours if not is_within(name, ALLOWED[part] | {part})]
    assert not wrong


@pytest.mark.parametrize("package", PIPELINE)
def test_a_package_of_the_pipeline_imports_only_what_lies_below_it(package: str) -> None:
    below = {f"specpipe.pipeline.{name}" for name in PIPELINE[package] | {package}}
    packages = {f"specpipe.pipeline.{name}" for name in PIPELINE}
    files = sorted((FOLDERS["specpipe.pipeline"] / package).rglob("*.py"))
    names = [(path, name) for path in files for name in imports(path) if is_within(name, packages)]
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in names if not is_within(name, below)]


def test_import_rules_cover_every_part() -> None:
    found = [*(ROOT / "specpipe").glob("*.py"), *(path.parent for path in (ROOT / "specpipe").glob("*/__init__.py"))]
    parts = {f"specpipe.{path.stem}" for path in found if not path.stem.startswith("__")}
    assert parts | {"specpipe_kernels"} == {part for part in ALLOWED if part.count(".") < 2}


def test_the_kernels_need_torch_and_triton_alone() -> None:
    files = FOLDERS["specpipe_kernels"].rglob("*.py")
    names = {name.split(".")[0] for path in files for name in imports(path)}
    assert names - set(sys.stdlib_module_names) == {"torch", "triton", "specpipe_kernels"}


@pytest.mark.parametrize("part", ["core", "errors"])
def test_the_vocabulary_needs_the_standard_library_alone(part: str) -> None:
    folder = FOLDERS[f"specpipe.{part}"]
    files = sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]
    names = {name.split(".")[0] for file in files for name in imports(file)}
    assert names <= {"specpipe", *sys.stdlib_module_names}
