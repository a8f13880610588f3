"""The section `data` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpipe.job.field_types import Count, Int, Text, Tuning
from specpipe.job.job_section import JobSection

DataFormat = Literal["auto", "parquet", "arrow", "jsonl", "sharegpt"]


class DataSection(JobSection):
    """The input rows. Formats, columns and error rows: docs/datasets.md."""

    path: Text
    """A file, a folder or a glob (`data/*.parquet`), local or a URI (`s3://bucket/folder`). Relative to the working
    directory."""
    format: DataFormat = "auto"
    """`auto` chooses by file extension. One JSON array (`sharegpt`) must be converted first; an error message
    shows the command."""
    prompt: Text | None = None
    """Prompt column, unless it has one of the usual names (`prompt`, `messages`, `conversations`, `prompt_token_ids`,
    `body`)."""
    limit: Count | None = None
    """Use at most this many rows, from the first."""
    on_too_long: Literal["error", "truncate_left"] = "error"
    """Prompts that are too long: `error` makes error rows. `truncate_left` removes their first tokens
    (docs/datasets.md)."""
    system_prompt: Text | None = None
    """System message for chats without one. Turns a plain `prompt` into the user message of a chat."""
    warmup_rows: Tuning[Annotated[Int, Field(ge=0)]] = 0
    """Copies of the first rows that each worker runs and discards, to keep start-up costs out of telemetry. On a CPU
    they generate 8 tokens at most."""
