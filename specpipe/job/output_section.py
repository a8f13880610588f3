"""The section `output` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.job.field_types import Int, OneIsAList, Text
from specpipe.job.job_section import JobSection


class OutputSection(JobSection):
    """Where outputs and telemetry go. Columns and files: docs/datasets.md."""

    path: Text
    """Folder of the run, local or a URI. Relative paths start at the working directory. A second start with the same
    job resumes what is there. `{date}` becomes the local day of the start, as in 2026-01-31, and `{name}` the job's
    name: `runs/{name}-{date}` is a run a day, which a start on another day does not resume."""
    keep_columns: Annotated[tuple[Text, ...], OneIsAList] = ()
    """Input columns to copy into the output."""
    max_failed_rows: Annotated[Int, Field(ge=0)] = 0
    """More failed rows than this end the run with exit code 3. The other rows are written either way."""

    @model_validator(mode="after")
    def _columns_do_not_collide(self) -> OutputSection:
        taken = [name for name in self.keep_columns if name in OUTPUT_COLUMNS]
        twice = {name for name in self.keep_columns if self.keep_columns.count(name) > 1}
        wrong = [f".keep_columns names {name!r}, which the output has anyway; leave it out" for name in taken]
        wrong += [f".keep_columns names {name!r} twice; name it once" for name in sorted(twice)]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self
