"""What CONTRIBUTING.md and the hooks promise is there."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_files_and_targets_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:specpipe|tests|docs)/[\w/.]+)`", TEXT)) - {"specpipe/speculation/NAME.py"}
    assert len(named) > 10 and [name for name in sorted(named) if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"(?:`|    )make ([\w-]+)", TEXT))
    assert len(targets) > 5 and [target for target in sorted(targets) if f"\n{target}:" not in MAKEFILE] == []


def test_every_target_says_what_it_does() -> None:
    rules = re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [rule for rule in rules if not re.search(rf"^{rule} +\S", shown, re.MULTILINE)] == []


def test_hooks_are_valid_and_call_what_make_lint_calls() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    subprocess.run(command, check=True, timeout=60)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"].removeprefix(".venv/bin/") for repo in config["repos"] for hook in repo["hooks"]]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0]
    lint = re.findall(r"^\t\$\(BIN\)/(\S+(?: (?:check|format))?)", recipe, re.MULTILINE)
    assert [entry.removesuffix(" --fix") for entry in entries] == lint
