"""Tests of damaged files beside the parts: a start replaces them or refuses them, and no part is lost."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.fake_workers import InProcessBackend, make_job, outputs

from specpipe.cli.main import main
from specpipe.errors import OutputError
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.store.verify import verify

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(reversed(data)) + b"\xff\x00",
    "list": lambda data: b"[1]",
}
SOME = [pytest.param(name, marks=() if name in ("half", "list") else pytest.mark.slow) for name in DAMAGES]
MENDED = (
    "summary.json", "report.html", "telemetry/shards.parquet", "telemetry/timeline-00001.parquet",
    "telemetry/costs.json", "telemetry/progress.json", ".specpipe/lock", ".specpipe/probe",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobSpec, Path]:
    folder = tmp_path_factory.mktemp("finished")
    job = make_job(folder, rows=8)
    execute(job, backend=InProcessBackend())
    (folder / "out").rename(folder / "kept")
    return job, folder


def damaged(folder: Path, names: Sequence[str], damage: str, *, partly: bool) -> Path:
    """The run's folder anew, with these files damaged; where `partly` without its last parts."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(folder / "kept", out)
    for part in sorted((out / "outputs").iterdir())[1:] if partly else ():
        part.unlink()
    for name in names:
        (out / name).write_bytes(DAMAGES[damage]((out / name).read_bytes()))
    return out


def start_again(job: JobSpec, out: Path) -> RunResult:
    before = {part: part.stat().st_mtime_ns for part in (out / "outputs").iterdir()}
    result = execute(job, backend=InProcessBackend())
    assert all(part.stat().st_mtime_ns == at for part, at in before.items())
    found = verify(str(out))
    assert found.complete, "\n".join(map(str, found.findings))
    assert outputs(out).equals(outputs(out.parent / "kept"))
    return result


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("damage", SOME)
def test_start_replaces_damaged_telemetry_files(finished: tuple[JobSpec, Path], damage: str, partly: bool) -> None:
    job, folder = finished
    out = damaged(folder, MENDED, damage, partly=partly)
    for command in ("show", "verify"):
        said = CliRunner().invoke(main, [command, str(out)])
        assert said.exception is None or isinstance(said.exception, SystemExit), (damage, said.exception)
    assert start_again(job, out).exit_code == 0


@pytest.mark.parametrize("damage", SOME)
def test_damaged_manifest_is_refused_and_deleted_one_loses_no_part(finished: tuple[JobSpec, Path], damage: str) -> None:
    job, folder = finished
    out = damaged(folder, ["manifest.json"], damage, partly=True)
    with pytest.raises(OutputError, match=r"manifest\.json is not the manifest.* delete it: the same job keeps"):
        execute(job, backend=InProcessBackend())
    (out / "manifest.json").unlink()
    assert start_again(job, out).state == "complete"


def test_start_without_manifest_keeps_all_parts(finished: tuple[JobSpec, Path]) -> None:
    job, folder = finished
    out = damaged(folder, [], "empty", partly=False)
    (out / "manifest.json").unlink()
    assert start_again(job, out).state == "complete"


def test_epoch_file_without_a_number_is_refused(finished: tuple[JobSpec, Path]) -> None:
    job, folder = finished
    out = damaged(folder, [".specpipe/epoch"], "garbage", partly=True)
    with pytest.raises(OutputError, match=r"epoch holds b'.*expected the number of the latest start\. Delete it"):
        execute(job, backend=InProcessBackend())
    (out / ".specpipe/epoch").unlink()
    assert start_again(job, out).state == "complete"


def test_error_names_the_file_that_cannot_be_read(finished: tuple[JobSpec, Path]) -> None:
    _, folder = finished
    out = damaged(folder, [], "empty", partly=False)
    (out / "manifest.json").unlink()
    (out / "manifest.json").mkdir()  # also root may not read it
    said = CliRunner().invoke(main, ["show", str(out)])
    assert (said.exit_code, said.output.count("\n")) == (2, 1)
    assert "manifest.json cannot be read: " in said.output
