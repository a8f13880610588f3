"""What the README shows is what there is."""

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from specpipe.cli.main import main
from specpipe.job import parse_job

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_job_is_a_valid_one() -> None:
    (job,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert parse_job(yaml.safe_load(job), [], source="README.md").speculation.num_speculative_tokens == 3


def test_its_commands_exist() -> None:
    commands = set(re.findall(r"^    specpipe (\w+)", README, re.MULTILINE))
    assert len(commands) >= 5
    for command in commands:
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
    targets = set(re.findall(r"^    make (\w+)", README, re.MULTILINE))
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8") for target in targets)


def test_its_links_lead_somewhere() -> None:
    single = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "kernels/README.md", "infra/README.md")]
    for path in [*single, *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert link.startswith("https://") or (path.parent / link).exists(), f"{path}: {link}"
