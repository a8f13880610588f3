"""Earlier answers that the runs of an evaluation follow: those of the other side, and of the latest evaluation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pyarrow.compute as pc

from specpipe.errors import DataError
from specpipe.evaluation.schedule.eval_history import read_history
from specpipe.evaluation.schedule.eval_job import EvalJob
from specpipe.job import JobSpec
from specpipe.pipeline.prepare import prepare
from specpipe.pipeline.replay.answer_sources import find_answer_files


def with_earlier_answers(job: EvalJob, spec: JobSpec) -> JobSpec:
    """Returns a run's job with the earlier answers that exist for it as `speculation.replay`.

    A run that speculates follows the same run of the latest evaluation in the history, and the candidate follows its
    baseline: first of all where both have the same settings, which gives the same answers. Unchanged are jobs with
    `speculation.replay`, and those that choose another proposer than `replay` or `auto`.
    """
    followed = _following(spec)
    if followed is None:
        return spec
    prepared = prepare(spec)
    found: list[str] = []
    for path in _candidates(job, spec):
        one = _with_replay(followed, (path,))
        try:
            files = find_answer_files(dataclasses.replace(prepared, job=one))
        except DataError:  # another vocabulary
            continue
        found += [path] if files else []
    return _with_replay(followed, tuple(found)) if found else spec


def _following(spec: JobSpec) -> JobSpec | None:
    """Returns the job with a proposer that can follow earlier answers; None where the job decides against it."""
    speculation = spec.speculation
    if speculation.replay or not speculation.max_k or speculation.method == "synthetic":
        return None
    if speculation.proposer in ("replay", "auto"):
        return spec
    if speculation.policy != "goodput" or "proposer" in speculation.model_fields_set:
        return None
    return spec.model_copy(update={"speculation": speculation.model_copy(update={"proposer": "auto"})})


def _with_replay(spec: JobSpec, paths: tuple[str, ...]) -> JobSpec:
    return spec.model_copy(update={"speculation": spec.speculation.model_copy(update={"replay": paths})})


def _candidates(job: EvalJob, spec: JobSpec) -> Iterator[str]:
    """Yields the folders of runs whose answers this run may follow, the preferred one first."""
    other = job.baseline_folder if spec is job.candidate else None
    same = isinstance(job.baseline, JobSpec) and job.baseline.identity() == spec.identity()
    if other is not None and same:
        yield other
    if (latest := _latest(job)) is not None:
        yield os.path.join(latest, os.path.basename(spec.output.path))
    if other is not None and not same:
        yield other


def _latest(job: EvalJob) -> str | None:
    """Returns the folder of the latest evaluation of this job in its history, without this one; None without one."""
    path = job.evaluation.history
    if path is None or not os.path.exists(path):
        return None
    history = read_history(path)
    earlier = pc.and_(pc.equal(history["job"], job.candidate.name), pc.not_equal(history["folder"], job.folder))
    found = history.filter(earlier).sort_by([("time", "descending")])["folder"].to_pylist()
    return next((str(folder) for folder in found if os.path.isdir(folder)), None)
