"""A job from a file, from a model, a draft, data and a folder alone, or from both."""

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
    """The options change `job` where there is one, and make up a whole job where there is none: drafted by --draft, or
    without it by n-grams of the row's own words. `overrides` (`--set`) come last. Raises JobError."""
    options = {"model": model, "draft": draft, "data": data, "out": out}
    given = {name: value for name, value in options.items() if value is not None}
    # JSON is YAML: a name such as 7b stays text
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
