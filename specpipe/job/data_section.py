"""The section `data` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpipe.job.field_types import Count, Int, Text
from specpipe.job.job_section import JobSection

DataFormat = Literal["auto", "parquet", "arrow", "jsonl", "sharegpt"]


class DataSection(JobSection):
    """The rows to generate for. Formats, columns and what a bad row gets: docs/datasets.md."""

    path: Text
    """A file, a folder or a glob (`data/*.parquet`), local or a URI (`s3://bucket/folder`). Relative paths start at
    the working directory."""
    format: DataFormat = "auto"
    """`auto` goes by the file's extension. A ShareGPT file that is one JSON array (`sharegpt`) must be converted first;
    the message says how."""
    prompt: Text | None = None
    """Column that holds the prompt, where it has none of the usual names (`prompt`, `messages`, `conversations`,
    `prompt_token_ids`, `body`)."""
    limit: Count | None = None
    """Only the first so many rows of the dataset."""
    on_too_long: Literal["error", "truncate_left"] = "error"
    """What becomes of a prompt that is too long: an error row, or its end alone. `truncate_left` cuts prompts so that
    max_new_tokens fit into max_model_len, but to no less than half of that; a beginning-of-sequence token stays."""
    system_prompt: Text | None = None
    """System turn for every chat that brings none. With it, a plain `prompt` becomes the user turn of a chat."""
    warmup_rows: Annotated[Int, Field(ge=0)] = 0
    """Rows that each worker runs first and throws away, so that start-up costs are in no figure. They are copies: the
    output still has every row."""
