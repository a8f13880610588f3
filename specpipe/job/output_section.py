"""The section `output` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.job.field_types import Int, OneIsAList, Text, Tuning
from specpipe.job.job_section import JobSection


class OutputSection(JobSection):
    """Outputs and telemetry. Columns and files: docs/datasets.md."""

    path: Tuning[Text]
    """Folder of the run, local or a URI, relative to the working directory. A second start of the same job resumes the
    run. `{date}` is the local date of the start (2026-01-31), `{name}` the job's name: `runs/{name}-{date}` makes a new
    run each day."""
    keep_columns: Annotated[tuple[Text, ...], OneIsAList] = ()
    """Input columns to copy into the output."""
    max_failed_rows: Tuning[Annotated[Int, Field(ge=0)]] = 0
    """With more failed rows the run exits with code 3. All other rows are written."""

    @model_validator(mode="after")
    def _check_columns(self) -> OutputSection:
        taken = [name for name in self.keep_columns if name in OUTPUT_COLUMNS]
        twice = {name for name in self.keep_columns if self.keep_columns.count(name) > 1}
        wrong = [f".keep_columns names {name!r}, which is an output column; leave it out" for name in taken]
        wrong += [f".keep_columns names {name!r} twice; name it once" for name in sorted(twice)]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self
