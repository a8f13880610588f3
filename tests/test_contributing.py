"""CONTRIBUTING.md names existing symbols and targets; make help and the hooks are complete."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


ANSWERS = re.findall(r"^\| ([^|`]*)\| `([^|`]+)` \| `([^|`]+)` \|$", TEXT, re.MULTILINE)


def defines(nodes: list[ast.stmt], symbol: str) -> bool:
    """Returns whether the statements define a class, function or constant of this name; `A.b` is b in class A."""
    first, _, rest = symbol.partition(".")
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == first:
            return not rest or defines(node.body, rest)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if not rest and any(isinstance(target, ast.Name) and target.id == first for target in targets):
            return True
    return False


@pytest.mark.parametrize(("file", "symbol"), [(file, symbol) for _, file, symbol in ANSWERS])
def test_a_symbol_that_answers_a_question_exists(file: str, symbol: str) -> None:
    assert defines(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, symbol)


def test_ten_questions_and_more_are_answered() -> None:
    assert len([question for question, _, _ in ANSWERS if question.strip()]) >= 10
    assert len(ANSWERS) == TEXT.split("| question |")[1].split("\n\n")[0].count("\n") - 1


def test_targets_that_it_names_exist() -> None:
    targets = set(re.findall(r"(?:`|    )make ([\w-]+)", TEXT))
    assert len(targets) > 5 and [target for target in sorted(targets) if f"\n{target}:" not in MAKEFILE] == []


def test_every_make_target_has_a_help_text() -> None:
    rules = re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [rule for rule in rules if not re.search(rf"^{rule} +\S", shown, re.MULTILINE)] == []


@pytest.mark.parametrize("target", ["run", "bench"])
def test_runs_install_no_development_packages(target: str) -> None:
    """Ray and transformers import optional packages that they find, which delays the first row."""
    command = ["make", "--dry-run", target, "VENV=/nonexistent"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines() if "pip install" in line] == ["."]


def test_hooks_run_the_tools_of_make_lint() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    subprocess.run(command, check=True, timeout=60)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"].removeprefix(".venv/bin/") for repo in config["repos"] for hook in repo["hooks"]]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0]
    lint = re.findall(r"^\t\$\(BIN\)/(\S+(?: (?:check|format))?)", recipe, re.MULTILINE)
    assert [entry.removesuffix(" --fix") for entry in entries] == lint
