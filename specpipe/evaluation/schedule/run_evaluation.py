"""One evaluation from a job file: record, run, replay, compare. Completed steps are not repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specpipe.errors import OutputError
from specpipe.evaluation.compare.compare_paths import compare_paths
from specpipe.evaluation.compare.comparison import Comparison
from specpipe.evaluation.harness.lm_eval_cli import parse_flags
from specpipe.evaluation.harness.recording import Recording, read_recording, write_recording
from specpipe.evaluation.harness.replay import RESULTS, replay
from specpipe.evaluation.harness.samples_files import find_samples
from specpipe.evaluation.pages.certificate import certificate
from specpipe.evaluation.pages.comparison_page import comparison_page
from specpipe.evaluation.pages.history_page import history_page
from specpipe.evaluation.schedule.earlier_answers import with_earlier_answers
from specpipe.evaluation.schedule.eval_history import append_history, history_rows
from specpipe.evaluation.schedule.eval_job import EvalJob
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import RunResult
from specpipe.pipeline.store.folder import require_lasting

Execute = Callable[[JobSpec], RunResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """Result of an evaluation."""

    exit_code: int
    """0; 1 if the runs differ; or the exit code of a run that did not complete."""
    comparison: Comparison | None
    """Comparison of the runs; None if one did not complete."""


def run_evaluation(job: EvalJob, execute: Execute, announce: Callable[[str], None]) -> EvalResult:
    """Runs an evaluation. execute: runs a job. announce: called with a line before each step. Raises SpecpipeError."""
    require_lasting(job.folder, "output.path")
    if job.evaluation.history is not None:
        require_lasting(job.evaluation.history, "eval.history")
    os.makedirs(job.folder, exist_ok=True)
    for spec in job.jobs:
        _record(job, spec, announce)
        name = os.path.basename(spec.output.path)
        announce(f"{name} → {spec.output.path}")
        followed = with_earlier_answers(job, spec)
        if followed is not spec:
            announce(f"{name} follows the answers of {', '.join(followed.speculation.replay)}")
        result = execute(followed)
        if result.exit_code:
            return EvalResult(exit_code=result.exit_code, comparison=None)
        _score(spec.output.path, announce)
    if isinstance(job.baseline, str):
        _score(job.baseline, announce)
    comparison = compare_paths(job.baseline_folder, job.candidate.output.path)
    _publish(job, comparison)
    return EvalResult(exit_code=1 if comparison.differs else 0, comparison=comparison)


def _score(run: str, announce: Callable[[str], None]) -> None:
    """Scores a run, unless it has scores."""
    if not find_samples(Path(run) / RESULTS):
        announce(f"lm-eval scores {os.path.basename(run.rstrip('/'))}")
        replay(run)


def _record(job: EvalJob, spec: JobSpec, announce: Callable[[str], None]) -> None:
    """Records the requests of a run unless they exist. Raises OutputError for a recording of another evaluation."""
    model, path = spec.model, spec.data.path
    wanted = Recording(
        flags=parse_flags(job.evaluation.arguments()).prompts,
        target=model.target,
        max_length=job.evaluation.max_length or model.max_model_len,
        chat_template=model.chat_template,
        trust_remote_code=model.trust_remote_code,
    )
    if not os.path.exists(path):
        announce(f"lm-eval records {', '.join(job.evaluation.tasks)}")
        count = write_recording(wanted, path)
        announce(f"{count:,} requests → {path}")
    elif (existing := read_recording(path)) != wanted:
        raise OutputError(
            f"{path} has other flags or another target ({existing.flags['tasks']}, {existing.target}); "
            "expected this job's, or another output.path"
        )


def _publish(job: EvalJob, comparison: Comparison) -> None:
    folder = Path(job.folder)
    text = json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False)
    (folder / "comparison.json").write_text(text, encoding="utf-8")
    (folder / "comparison.html").write_text(comparison_page(comparison), encoding="utf-8")
    (folder / "certificate.md").write_text(certificate(comparison, "comparison.html"), encoding="utf-8")
    if job.evaluation.history is not None:
        path = Path(job.evaluation.history)
        table = append_history(str(path), history_rows(job, comparison))
        path.with_suffix(".html").write_text(history_page(table), encoding="utf-8")
