"""Job files of evaluations, and their history."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specpipe.cli.main import main
from specpipe.errors import DataError, JobError
from specpipe.evaluation.harness.lm_eval_cli import parse_flags
from specpipe.evaluation.pages.history_page import history_page, sparkline
from specpipe.evaluation.schedule.eval_history import SCHEMA, append_history, read_history
from specpipe.evaluation.schedule.eval_job import load_eval_job

ROOT = Path(__file__).parents[3]


def write(folder: Path, **changes: Any) -> str:
    values: dict[str, Any] = {
        "eval": {"tasks": "tiny_word_problems", "flags": {"num_fewshot": 2, "apply_chat_template": True}},
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny"},
        "output": {"path": str(folder / "out")},
    }
    path = folder / "nightly.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (values | changes).items() if v is not None}))
    return str(path)


def test_two_runs_over_one_recording(tmp_path: Path) -> None:
    job = load_eval_job(write(tmp_path), ["seed=4", "speculation.num_speculative_tokens=5"], limit=7)
    baseline, candidate = job.jobs
    assert baseline.data.path == candidate.data.path == str(tmp_path / "out/requests.parquet")
    assert [run.output.path for run in job.jobs] == [str(tmp_path / "out" / n) for n in ("baseline", "candidate")]
    assert (baseline.speculation.policy, candidate.speculation.policy) == ("off", "goodput")
    assert baseline.seed == candidate.seed == 4 and candidate.name == "nightly"
    found = parse_flags(job.evaluation.arguments()).prompts
    assert (found["tasks"], found["num_fewshot"], found["limit"]) == (["tiny_word_problems"], 2, 7.0)
    assert found["apply_chat_template"] is True


def test_the_baseline_may_change_any_key(tmp_path: Path) -> None:
    section = {"tasks": ["a"], "baseline": {"speculation.method": "invariant", "seed": 9}}
    job = load_eval_job(write(tmp_path, eval=section))
    baseline, candidate = job.jobs
    assert (baseline.speculation.method, baseline.seed) == ("invariant", 9)
    assert (candidate.speculation.method, candidate.seed) == ("standard", 0)


def test_another_model_as_baseline_has_a_recording_of_its_own(tmp_path: Path) -> None:
    job = load_eval_job(write(tmp_path, eval={"tasks": ["a"], "baseline": {"model.target": "some/model"}}))
    baseline, candidate = job.jobs
    assert (baseline.model.target, candidate.model.target) == ("some/model", "builtin:tiny")
    assert baseline.data.path == str(tmp_path / "out/requests-baseline.parquet") != candidate.data.path
    quantised = load_eval_job(write(tmp_path, eval={"tasks": ["a"], "baseline": {"model.dtype": "bfloat16"}}))
    assert quantised.jobs[0].data.path == quantised.jobs[1].data.path


def test_an_existing_run_may_be_the_baseline(tmp_path: Path) -> None:
    job = load_eval_job(write(tmp_path, eval={"tasks": ["a"], "baseline": "runs/yesterday"}))
    assert job.baseline_folder == "runs/yesterday" and job.jobs == (job.candidate,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eval": None}, "no section eval"),
        ({"eval": {"flags": {}}}, r"eval\..*tasks"),
        ({"eval": {"tasks": ["a"], "flogs": {}}}, "flogs"),
        ({"data": {"path": "x.parquet"}}, "data.path is set; expected no data.path"),
        ({"output": {"path": "s3://bucket/x"}}, "expected a local folder"),
        ({"speculation": {"policy": "never"}}, "speculation.policy"),
    ],
)
def test_invalid_job_files_name_the_wrong_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        load_eval_job(write(tmp_path, **changes))


@pytest.mark.parametrize("name", ["eval-tiny.yaml", "eval-tiny-5shot.yaml", "eval-gsm8k.yaml"])
def test_shipped_evaluation_jobs_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    job = load_eval_job(f"jobs/{name}")
    assert parse_flags(job.evaluation.arguments()).prompts["tasks"] == list(job.evaluation.tasks)
    assert job.jobs[0].speculation.policy == "off" and "{" not in job.folder


def test_run_refuses_the_job_of_an_evaluation(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["run", write(tmp_path, data={"path": "x.parquet"})])
    assert shown.exit_code == 2 and "eval" in shown.stderr


def rows(folder: str, **changes: Any) -> list[dict[str, Any]]:
    import datetime

    values: dict[str, Any] = {name: 0.5 for name in SCHEMA.names}
    values |= {name: name for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True) if str(kind) == "string"}
    values |= {"time": datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC), "n": 9, "folder": folder}
    return [values | changes]


def test_a_history_keeps_one_entry_per_evaluation(tmp_path: Path) -> None:
    path = str(tmp_path / "deep/history.parquet")
    append_history(path, rows("a", candidate=0.25))
    append_history(path, rows("b"))
    append_history(path, rows("a", candidate=0.75, job="<nightly>"))
    found = read_history(path)
    assert found["folder"].to_pylist() == ["b", "a"]
    assert found["candidate"].to_pylist() == [0.5, 0.75]
    page = history_page(found)
    assert page.count("<svg") == 4 and "&lt;nightly&gt;" in page and "candidate 0.7500" in page

    shown = CliRunner().invoke(main, ["show", path])
    assert shown.exit_code == 0 and "0.7500" in shown.stdout and "acceptance_length" in shown.stdout


def test_other_files_are_refused_as_history(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(DataError, match="is not a history of evaluations"):
        read_history(str(tmp_path / "x.parquet"))


def test_a_sparkline_scales_from_lowest_to_highest() -> None:
    assert sparkline([0.0, 1.0, 0.5]) == "▁█▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
