"""Commands in infra/ are valid for their programs."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from croniter import croniter
from ray.scripts.scripts import cli as ray

from specpipe.cli.main import main as specpipe

PROGRAMS = {"ray": ray, "specpipe": specpipe}


def parse(words: list[str]) -> None:
    """Raises click's UsageError for a command or an option that does not exist."""
    command: click.Command = PROGRAMS[words[0]]
    rest = words[1:]
    with click.Context(command, info_name=words[0]) as context:
        while isinstance(command, click.Group):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None and name is not None
            command, context = found, click.Context(found, parent=context, info_name=name)
        parsed = command.make_parser(context).parse_args(args=rest)[0]
    if "entrypoint" in parsed:
        parse(list(parsed["entrypoint"]))


def commands(infra: Path) -> Iterator[list[str]]:
    cron = yaml.safe_load((infra / "kubernetes/nightly.yaml").read_text(encoding="utf-8"))
    yield cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    yield shlex.split(
        yaml.safe_load((infra / "kubernetes/rayjob.yaml").read_text(encoding="utf-8"))["spec"]["entrypoint"]
    )
    launcher = yaml.safe_load((infra / "cluster.yaml").read_text(encoding="utf-8"))
    for line in [*launcher["head_start_ray_commands"], *launcher["worker_start_ray_commands"]]:
        yield [word for word in shlex.split(line) if not re.fullmatch(r"RAY_\w+=.*", word)]
    service = (infra / "schedule/specpipe-nightly.service").read_text(encoding="utf-8")
    yield shlex.split(re.findall(r"^ExecStart=/opt/specpipe/bin/(.*)$", service, re.MULTILINE)[0])
    yield ["ray", *cron_line(infra).partition(" ray ")[2].split()]
    readme = (infra / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"^ {4}(?:\$ )?((?:ray|specpipe) [^\n#]*)", readme, re.MULTILINE):
        yield shlex.split(line)


def cron_line(infra: Path) -> str:
    lines = (infra / "schedule/crontab").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if re.match(r"[\d*]", line))
    return line


def test_commands_of_all_files_parse(infra: Path) -> None:
    found = list(commands(infra))
    assert len(found) >= 8
    for words in found:
        parse(words)


def test_unknown_commands_and_options_do_not_parse() -> None:
    with pytest.raises(click.UsageError):
        parse(["ray", "job", "submit", "--wait-for-me", "--", "specpipe", "run"])
    with pytest.raises(click.UsageError):
        parse(["ray", "job", "submit", "--", "specpipe", "eval", "walk"])


def test_schedules_run_at_half_past_two(infra: Path) -> None:
    cron = yaml.safe_load((infra / "kubernetes/nightly.yaml").read_text(encoding="utf-8"))
    for schedule in (cron["spec"]["schedule"], " ".join(cron_line(infra).split()[:5])):
        assert croniter.expand(schedule)[0][:2] == [[30], [2]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own checker")
def test_systemd_accepts_the_units(infra: Path, tmp_path: Path) -> None:
    for name in ("specpipe-nightly.service", "specpipe-nightly.timer"):
        text = (infra / "schedule" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(
            text.replace("/opt/specpipe/bin/ray", "/bin/true").replace("User=specpipe", "User=root")
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    mine = [line for line in done.stderr.splitlines() if "specpipe" in line]
    assert (done.returncode, mine) == (0, [])
