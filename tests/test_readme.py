"""README.md: its job, its make targets, its length. Links and commands: test_docs.py."""

import re
from pathlib import Path

import yaml

from specpipe.job import parse_job

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_job_is_valid() -> None:
    (job,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert parse_job(yaml.safe_load(job), [], source="README.md").model.draft == "meta-llama/Llama-3.2-1B-Instruct"


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^    make (\w+)", README, re.MULTILINE))
    assert targets == {"run", "test"}
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8") for target in targets)


def test_it_fits_a_screen_of_a_page() -> None:
    assert len(README.splitlines()) <= 100
