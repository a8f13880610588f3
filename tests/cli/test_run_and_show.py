"""`specpipe run` and `specpipe show`: messages, exit codes, no traceback for mistakes of the user."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from support.fake_workers import InProcessBackend, make_job

from specpipe.cli.benchmark_report import benchmark_report
from specpipe.cli.main import main
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.lock import RunLock

TINY = [argument for role in ("target", "draft") for argument in ("--set", f"model.{role}=builtin:tiny")]
"""Options of a dry run: it reads the models' configurations and tokenizers, which those of `make_job` lack."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with inputs, models and a complete run in `out`; tests only read it."""
    folder = tmp_path_factory.mktemp("complete")
    execute(make_job(folder), backend=InProcessBackend())
    return folder


def write_job(folder: Path, out: Path) -> Path:
    """Writes a job over the inputs of `folder`, with default sampling and shards, beside its output folder."""
    path = out.parent / "job.yaml"
    values = {
        "model": {"target": str(folder / "target"), "draft": str(folder / "draft")},
        "data": {"path": str(folder / "rows.parquet")},
        "output": {"path": str(out)},
    }
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def job(folder: Path, tmp_path: Path) -> Path:
    """A job file without a run."""
    return write_job(folder, tmp_path / "out")


def specpipe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_rejected(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_help_imports_no_heavy_libraries() -> None:
    code = (
        "import sys\nfrom specpipe.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'ray', 'transformers', 'pyarrow', 'pydantic', 'rich', 'matplotlib', 'jinja2'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "specpipe run" in shown.stdout
    assert "130" in shown.stdout


def test_version_is_printed() -> None:
    assert specpipe("--version").stdout.startswith("specpipe, version ")


@pytest.mark.parametrize("command", ["run", "show"])
def test_help_shows_examples(command: str) -> None:
    shown = specpipe(command, "--help")
    assert shown.exit_code == 0
    assert f"specpipe {command} " in shown.stdout


def test_missing_job_file_is_rejected(tmp_path: Path) -> None:
    assert_rejected(specpipe("run", tmp_path / "nope.yaml"), "nope.yaml does not exist")


def test_misspelt_key_is_rejected_with_a_suggestion(job: Path) -> None:
    assert_rejected(specpipe("run", job, "--set", "speculation.polcy=off"), "did you mean speculation.policy?")


def test_missing_model_is_rejected(job: Path) -> None:
    assert_rejected(specpipe("run", job, "--set", "model.target=./missing"), "model folder ./missing does not exist")


def test_missing_dataset_is_rejected(job: Path) -> None:
    assert_rejected(specpipe("run", job, "--set", "data.path=missing.parquet"), "missing.parquet does not exist")


def test_dataset_without_prompt_column_is_rejected(job: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    result = specpipe("run", job, "--set", f"data.path={tmp_path / 'other.parquet'}")
    assert_rejected(result, "columns text", "data.prompt")


def test_empty_dataset_is_rejected(job: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    empty = f"data.path={tmp_path / 'empty.parquet'}"
    assert_rejected(specpipe("run", job, "--dry-run", *TINY, "--set", empty), "no rows")


def test_output_folder_with_other_files_is_rejected(job: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("")
    assert_rejected(specpipe("run", job), "thesis.tex", "output.path")


def test_output_folder_of_a_live_run_is_rejected(job: Path, tmp_path: Path) -> None:
    with RunLock(tmp_path / "out/.specpipe/lock"):
        assert_rejected(specpipe("run", job), "live run (pid ")


def test_output_folder_of_another_job_is_rejected(folder: Path) -> None:
    job = write_job(folder, folder / "out")
    assert_rejected(specpipe("run", job), "sampling.max_new_tokens was 10 and is 256")
    assert_rejected(specpipe("run", job, "--dry-run", *TINY), "sampling.max_new_tokens was 10 and is 256")


def test_dry_run_prints_the_plan_and_writes_nothing(job: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    shown = specpipe("run", job, "--dry-run", "--limit", 10, *TINY)
    assert shown.exit_code == 0, shown.output
    assert "10 in 1 file(s)" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines() if str(tmp_path)[:20] not in line)
    assert sorted(tmp_path.rglob("*")) == before


def test_show_prints_totals_or_json(folder: Path) -> None:
    shown = specpipe("show", folder / "out")
    assert shown.exit_code == 0
    assert "24 of 24" in shown.stdout
    assert "acceptance length" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines()[1:])
    summary = json.loads(specpipe("show", folder / "out", "--json").stdout)
    assert (summary["state"], summary["completed"]) == ("complete", 24)


def test_show_computes_the_summary_of_an_incomplete_run(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "out", tmp_path / "out")
    (tmp_path / "out/summary.json").unlink()
    part = (tmp_path / "out/outputs/part-00000.parquet").rename(tmp_path / "gone.parquet")
    summary = json.loads(specpipe("show", tmp_path / "out", "--json").stdout)
    assert (summary["state"], summary["completed"]) == ("incomplete", 24 - pq.read_metadata(part).num_rows)
    with RunLock(tmp_path / "out/.specpipe/lock"):
        assert "running" in specpipe("show", tmp_path / "out").stdout


def test_show_rejects_a_folder_without_a_run(tmp_path: Path) -> None:
    assert_rejected(specpipe("show", tmp_path), "not a specpipe run")
    assert_rejected(specpipe("show", tmp_path / "missing"), "specpipe run")


def test_complete_run_needs_no_cluster(folder: Path) -> None:
    job = write_job(folder, folder / "out")
    again = specpipe("run", job, "--set", "sampling.max_new_tokens=10", "--set", "workers.shard_tokens=50")
    assert again.exit_code == 0, again.output
    assert "already complete" in again.stdout
    assert "Report with plots: report.html" in again.stdout


@pytest.mark.parametrize("command", ["verify", "show", "compare"])
def test_a_file_in_place_of_a_run_is_named(command: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n')
    arguments = (folder / "out", file) if command == "compare" else (file,)
    assert_rejected(specpipe(command, *arguments), str(file), "expected")


def test_numbers_of_thousands_of_digits_are_named_shortly(job: Path) -> None:
    result = specpipe("run", job, "--dry-run", "--set", f"seed={'9' * 6000}")
    assert_rejected(result, "a number of more than 4,300 digits")
    assert len(result.stderr) < 300


def test_benchmark_prints_the_figures_of_serving_benchmarks_in_their_order(folder: Path) -> None:
    summary = json.loads(specpipe("show", folder / "out", "--json").stdout)
    names = re.findall(r"^ *([A-Z].*?):", benchmark_report(summary), re.MULTILINE)
    assert names[:12] == [
        "Successful requests", "Failed requests", "Maximum request concurrency", "Benchmark duration (s)",
        "Total input tokens", "Total generated tokens", "Request throughput (req/s)", "Output token throughput (tok/s)",
        "Peak output token throughput (tok/s)", "Peak concurrent requests", "Total token throughput (tok/s)",
        "Mean TTFT (ms)",
    ]  # fmt: skip
    assert names[-4:] == ["Per-position acceptance (%)", "Position 0", "Position 1", "Position 2"]
    assert summary["max_concurrency"] >= summary["peak_concurrent_requests"] > 0
