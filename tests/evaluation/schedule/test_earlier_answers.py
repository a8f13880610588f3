"""Evaluations follow earlier answers: those of the other side and of the latest evaluation, without models."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_workers import InProcessBackend, write_rows

from specpipe.evaluation.schedule.earlier_answers import with_earlier_answers
from specpipe.evaluation.schedule.eval_history import SCHEMA, append_history
from specpipe.evaluation.schedule.eval_job import EvalJob, load_eval_job
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import execute


def evaluation(folder: Path, night: str, *overrides: str, **section: Any) -> EvalJob:
    """The job of one night; runs of a night are below its folder."""
    values = {
        "eval": {"tasks": ["a"], "history": str(folder / "history.parquet"), **section},
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"},
        "output": {"path": str(folder / night)},
    }
    (folder / "nightly.yaml").write_text(json.dumps(values))
    return load_eval_job(str(folder / "nightly.yaml"), overrides)


def run(job: EvalJob, spec: JobSpec) -> None:
    """Runs one side of an evaluation with an engine without a model."""
    Path(job.folder).mkdir(exist_ok=True)
    write_rows(Path(spec.data.path), 2)
    execute(spec, backend=InProcessBackend())


def finish(job: EvalJob, time: int) -> None:
    """Adds an evaluation to the history."""
    values: dict[str, Any] = {name: 0.5 for name in SCHEMA.names}
    values |= {name: name for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True) if str(kind) == "string"}
    values |= {"time": datetime.datetime.fromtimestamp(time, datetime.UTC), "n": 1}
    values |= {"job": job.candidate.name, "folder": job.folder}
    append_history(str(job.evaluation.history), [values])


@pytest.fixture(autouse=True)
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.run.write_report", lambda *_: None)


def test_candidate_follows_its_baseline(tmp_path: Path) -> None:
    job = evaluation(tmp_path, "one")
    baseline, candidate = job.jobs
    assert with_earlier_answers(job, baseline) is baseline
    run(job, baseline)
    followed = with_earlier_answers(job, candidate).speculation
    assert (followed.proposer, followed.replay) == ("auto", (baseline.output.path,))
    assert with_earlier_answers(job, baseline) is baseline, "it does not speculate"


@pytest.mark.parametrize("changes", [{}, {"model.quantize": "fp8"}])
def test_latest_night_comes_first_unless_the_sides_are_equal(tmp_path: Path, changes: dict[str, str]) -> None:
    baselines = {"speculation.policy": "off", **changes}
    for time, night in enumerate(("one", "two")):
        job = evaluation(tmp_path, night, baseline=baselines)
        run(job, job.candidate)
        finish(job, time)
    job = evaluation(tmp_path, "three", baseline=baselines)
    write_rows_of(job)
    yesterday, tonight = str(tmp_path / "two/candidate"), str(tmp_path / "three/baseline")
    assert with_earlier_answers(job, job.candidate).speculation.replay == (yesterday,)
    run(job, job.jobs[0].model_copy(update={"model": job.candidate.model}))
    expected = (yesterday, tonight) if changes else (tonight, yesterday)
    assert with_earlier_answers(job, job.candidate).speculation.replay == expected


def write_rows_of(job: EvalJob) -> None:
    Path(job.folder).mkdir()
    write_rows(Path(job.candidate.data.path), 2)


@pytest.mark.parametrize(
    "override",
    ["proposer=draft", "policy=fixed", "{proposer: replay, replay: runs/other}", "proposer=none"],
)
def test_jobs_that_choose_otherwise_stay_as_they_are(tmp_path: Path, override: str) -> None:
    setting = f"speculation={override}" if override.startswith("{") else f"speculation.{override}"
    job = evaluation(tmp_path, "one", setting)
    run(job, job.jobs[0])
    assert with_earlier_answers(job, job.candidate) is job.candidate
