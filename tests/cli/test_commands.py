"""What a user sees: one clear message for each mistake, the right exit code, no traceback."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from support.fake_workers import InProcessBackend, make_job

from specpipe.cli.main import main
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.lock import RunLock


@pytest.fixture
def job(tmp_path: Path) -> Path:
    make_job(tmp_path)
    path = tmp_path / "job.yaml"
    values = {
        "model": {"target": str(tmp_path / "target"), "draft": str(tmp_path / "draft")},
        "data": {"path": str(tmp_path / "rows.parquet")},
        "output": {"path": str(tmp_path / "out")},
    }
    path.write_text(yaml.safe_dump(values))
    return path


def specpipe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom specpipe.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'ray', 'transformers', 'pyarrow', 'pydantic', 'rich', 'matplotlib', 'jinja2'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    began = time.perf_counter()
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert time.perf_counter() - began < 5
    assert "specpipe run" in shown.stdout
    assert "130" in shown.stdout


def test_version() -> None:
    assert specpipe("--version").stdout.startswith("specpipe, version ")


@pytest.mark.parametrize("command", ["run", "show"])
def test_every_command_explains_itself(command: str) -> None:
    shown = specpipe(command, "--help")
    assert shown.exit_code == 0
    assert f"specpipe {command} " in shown.stdout


def test_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    refused(specpipe("run", tmp_path / "nope.yaml"), "nope.yaml does not exist")


def test_a_typo_in_a_job(job: Path) -> None:
    refused(specpipe("run", job, "--set", "speculation.polcy=off"), "did you mean speculation.policy?")


def test_a_model_that_is_not_there(job: Path) -> None:
    refused(specpipe("run", job, "--set", "model.target=./missing"), "model folder ./missing does not exist")


def test_a_dataset_that_is_not_there(job: Path) -> None:
    refused(specpipe("run", job, "--set", "data.path=missing.parquet"), "missing.parquet does not exist")


def test_a_dataset_without_a_prompt(job: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    refused(specpipe("run", job, "--set", f"data.path={tmp_path / 'other.parquet'}"), "columns text", "data.prompt")


def test_an_empty_dataset(job: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    refused(specpipe("run", job, "--dry-run", "--set", f"data.path={tmp_path / 'empty.parquet'}"), "no rows")


def test_an_output_folder_with_other_files(job: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("")
    refused(specpipe("run", job), "thesis.tex", "output.path")


def test_an_output_folder_of_a_live_run(job: Path, tmp_path: Path) -> None:
    with RunLock(tmp_path / "out/.specpipe/lock"):
        refused(specpipe("run", job), "live run (pid ")


def test_an_output_folder_of_another_job(job: Path, tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    refused(specpipe("run", job), "sampling.max_new_tokens was 10 and is 256")
    refused(specpipe("run", job, "--dry-run"), "sampling.max_new_tokens was 10 and is 256")


def test_a_dry_run_plans_and_writes_nothing(job: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    shown = specpipe("run", job, "--dry-run", "--limit", 10)
    assert shown.exit_code == 0, shown.output
    assert "10 in 1 file(s)" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines() if str(tmp_path)[:20] not in line)
    assert sorted(tmp_path.rglob("*")) == before


def test_show_prints_totals_or_json(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    shown = specpipe("show", tmp_path / "out")
    assert shown.exit_code == 0
    assert "24 of 24" in shown.stdout
    assert "acceptance length" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines()[1:])
    summary = json.loads(specpipe("show", tmp_path / "out", "--json").stdout)
    assert (summary["state"], summary["completed"]) == ("complete", 24)


def test_show_reads_a_run_that_has_no_summary_yet(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    (tmp_path / "out/summary.json").unlink()
    part = (tmp_path / "out/outputs/part-00000.parquet").rename(tmp_path / "gone.parquet")
    summary = json.loads(specpipe("show", tmp_path / "out", "--json").stdout)
    assert (summary["state"], summary["completed"]) == ("incomplete", 24 - pq.read_metadata(part).num_rows)
    with RunLock(tmp_path / "out/.specpipe/lock"):
        assert "running" in specpipe("show", tmp_path / "out").stdout


def test_show_of_something_else(tmp_path: Path) -> None:
    refused(specpipe("show", tmp_path), "not a specpipe run")
    refused(specpipe("show", tmp_path / "missing"), "not a specpipe run")


def test_a_complete_run_needs_no_cluster(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(make_job(tmp_path, "sampling.max_new_tokens=256", "workers.shard_tokens=5000"), backend=InProcessBackend())
    again = specpipe("run", job, "--set", "sampling.max_new_tokens=256")
    assert again.exit_code == 0, again.output
    assert "already complete" in again.stdout
    assert "Report with plots: report.html" in again.stdout
