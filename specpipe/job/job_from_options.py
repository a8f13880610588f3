"""A job from a job file, from command-line options alone, or from both."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specpipe.errors import JobError
from specpipe.job.job_file import load_job, parse_job
from specpipe.job.job_spec import JobSpec

_KEYS = {"model": "model.target", "draft": "model.draft", "data": "data.path", "out": "output.path"}


def job_from_options(
    job: str | JobSpec | None,
    overrides: Sequence[str],
    *,
    model: str | None = None,
    draft: str | None = None,
    data: str | None = None,
    out: str | None = None,
) -> JobSpec:
    """Returns a job file's job with these options applied, or a job made of the options alone.

    Without a job file and without `draft`, n-grams draft. `overrides` (`--set`) are applied last. Raises JobError.
    """
    options = {"model": model, "draft": draft, "data": data, "out": out}
    given = {name: value for name, value in options.items() if value is not None}
    # JSON strings are YAML strings, so a name such as 7 stays text.
    changes = [*(f"{_KEYS[name]}={json.dumps(value)}" for name, value in given.items()), *overrides]
    if isinstance(job, JobSpec):
        return parse_job(job.model_dump(mode="json", exclude_unset=True), changes, source=job.name)
    if job is not None:
        return load_job(job, changes)
    if missing := [f"--{name}" for name in ("model", "data", "out") if name not in given]:
        raise JobError(
            f"there is no job file and no {' and '.join(missing)}; expected JOB, or --model, --data and --out. "
            "`specpipe init` writes a job file to start from"
        )
    values = {
        "model": {"target": model} if draft is None else {"target": model, "draft": draft},
        "data": {"path": data},
        "speculation": {} if draft is not None else {"proposer": "ngram"},
        "output": {"path": out},
    }
    return parse_job(values, overrides, source="the command line")
