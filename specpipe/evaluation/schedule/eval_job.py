"""Evaluation job files: a job without data.path, and a section `eval` with lm-eval's tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from specpipe.errors import JobError
from specpipe.job import JobSpec, parse_job
from specpipe.job.field_types import Int, Keywords, OneIsAList, Text
from specpipe.job.job_problems import job_problems
from specpipe.job.job_section import JobSection

REQUESTS, BASELINE_REQUESTS = "requests.parquet", "requests-baseline.parquet"
"""Names of the recordings. The baseline has its own where its model encodes requests in another way."""
_NO_SPECULATION = (("speculation.policy", "off"),)


class EvalSection(JobSection):
    """Section `eval`: lm-eval's tasks and flags, and the baseline run."""

    tasks: Annotated[tuple[str, ...], OneIsAList, Field(min_length=1)]
    """Tasks or groups of lm-eval."""
    flags: Keywords = ()
    """Further flags of lm-eval by name: `{num_fewshot: 5, apply_chat_template: true}`."""
    max_length: Annotated[Int, Field(ge=2)] | None = None
    """Longest prompt + output in tokens; longer prompts are truncated at the beginning. Default: the target's own."""
    baseline: Keywords | Text = _NO_SPECULATION
    """Job keys of the baseline run that differ, by dotted name; or the folder of an existing run."""
    history: str | None = "runs/eval-history.parquet"
    """Table to append results to, which `specpipe show` plots; none for no history."""

    def arguments(self) -> list[str]:
        """Returns lm-eval's command line."""
        found = ["--tasks", ",".join(self.tasks)]
        for name, value in self.flags:
            if value is not None and value is not False:
                found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalJob:
    """An evaluation and its two runs."""

    evaluation: EvalSection
    folder: str
    """Local folder for recordings, runs and the comparison."""
    candidate: JobSpec
    """The job of the file."""
    baseline: JobSpec | str
    """The job that it is compared with, or the folder of an existing run."""

    @property
    def jobs(self) -> tuple[JobSpec, ...]:
        """The jobs to run, the baseline first."""
        return (self.candidate,) if isinstance(self.baseline, str) else (self.baseline, self.candidate)

    @property
    def baseline_folder(self) -> str:
        """Output folder of the run that the candidate is compared with."""
        return self.baseline if isinstance(self.baseline, str) else self.baseline.output.path


def load_eval_job(path: str, overrides: Sequence[str] = (), *, limit: int | None = None) -> EvalJob:
    """Reads an evaluation's job file. limit: lm-eval's documents per task; None for the file's value.

    Raises JobError with every invalid key.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise JobError(f"job file {path} does not exist (working directory {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobError(f"job file {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or "eval" not in values:
        raise JobError(f"{path} has no section eval; expected one with tasks. Start a job without it by `specpipe run`")
    section = values.pop("eval")
    if (values.get("data") or {}).get("path") is not None:
        raise JobError(f"{path}: data.path is set; expected no data.path: an evaluation runs on its recorded requests")
    return _job(path, values, _section(path, section, limit), overrides)


def _section(path: str, values: Any, limit: int | None) -> EvalSection:
    if limit is not None and isinstance(values, dict):
        values = {**values, "flags": {**(values.get("flags") or {}), "limit": limit}}
    try:
        return EvalSection.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(f"eval.{problem.text}" for problem in job_problems(error, EvalSection, values))
        raise JobError(f"{path}: {wrong}") from None


def _job(path: str, values: Mapping[str, Any], evaluation: EvalSection, overrides: Sequence[str]) -> EvalJob:
    def parse(*more: str) -> JobSpec:
        return parse_job(dict(values), [*overrides, *more], source=path, name=Path(path).stem)

    folder = parse("data.path=requests.parquet").output.path
    if "://" in folder:
        raise JobError(f"{path}: output.path is {folder}; expected a local folder, where lm-eval writes its results")

    def side(name: str, recording: str, *changes: str) -> JobSpec:
        places = f"data.path={os.path.join(folder, recording)}", f"output.path={os.path.join(folder, name)}"
        return parse(*places, *changes)

    candidate = side("candidate", REQUESTS)
    baseline: JobSpec | str
    if isinstance(evaluation.baseline, str):
        baseline = evaluation.baseline
    else:
        changes = [f"{name}={_text(value)}" for name, value in evaluation.baseline]
        baseline = side("baseline", REQUESTS, *changes)
        if _encodes(baseline) != _encodes(candidate):  # another tokenizer or template has other tokens
            baseline = side("baseline", BASELINE_REQUESTS, *changes)
    return EvalJob(evaluation=evaluation, folder=os.path.abspath(folder), candidate=candidate, baseline=baseline)


def _encodes(job: JobSpec) -> tuple[object, ...]:
    """Returns the settings of a job that make the token ids of its requests."""
    model = job.model
    return model.target, model.chat_template, model.max_model_len, model.trust_remote_code


def _text(value: object) -> str:
    """Returns a value as an override of the command line."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
