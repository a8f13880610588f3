"""Streaming export of a run's outputs to formats of other programs: `specpipe convert RUN`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Literal, TextIO

import pyarrow.fs

from specpipe.data.locations import locate
from specpipe.data.publish import publish_file
from specpipe.errors import JobError
from specpipe.evaluation.export.chat_formats import write_openai_batch, write_sharegpt
from specpipe.evaluation.export.predictions import write_predictions
from specpipe.evaluation.run_outputs import RunOutputs

ExportFormat = Literal["lm-eval", "openai-batch", "jsonl", "csv", "sharegpt"]
Write = Callable[[RunOutputs, TextIO], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """Counts of an export."""

    out: str
    """Absolute path or URI of the file."""
    rows: int
    failed: int
    """Failed rows: written as errors, or omitted if the format has none."""


def export(run: str, to: ExportFormat, out: str, *, overwrite: bool = False) -> ExportReport:
    """Writes the outputs of a complete run, in input order. Holds one batch of rows in memory.

    Raises OutputError for an incomplete or synthetic run, JobError for an existing `out`.
    """
    outputs = RunOutputs.open(run)
    target = locate(out)
    if not overwrite and target.filesystem.get_file_info(target.path).type != pyarrow.fs.FileType.NotFound:
        raise JobError(f"{out} already exists; expected another --out, or --overwrite")
    try:
        with publish_file(out) as path, open(path, "wb") as binary:
            text = TextIOWrapper(binary, encoding="utf-8", newline="")
            failed = WRITERS[to](outputs, text)
            text.flush()
            text.detach()
    except OSError as error:
        raise JobError(f"{run} cannot be exported to {out}: {error}") from error
    return ExportReport(out=target.text(), rows=outputs.rows, failed=failed)


def write_jsonl(outputs: RunOutputs, file: TextIO) -> int:
    """Writes one JSON object per row with every column. Returns the number of failed rows, as all writers do."""
    failed = 0
    for row in outputs.records():
        failed += row["finish_reason"] == "error"
        file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return failed


def write_csv(outputs: RunOutputs, file: TextIO) -> int:
    """Writes every column with a header; values other than text and numbers as JSON. Returns failed rows."""
    failed, writer = 0, None
    for row in outputs.records():
        failed += row["finish_reason"] == "error"
        if writer is None:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return failed


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)


WRITERS: Mapping[ExportFormat, Write] = {
    "lm-eval": write_predictions,
    "openai-batch": write_openai_batch,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "sharegpt": write_sharegpt,
}
ENDINGS: Mapping[ExportFormat, str] = {
    "lm-eval": "samples.jsonl",
    "openai-batch": "batch.jsonl",
    "jsonl": "jsonl",
    "csv": "csv",
    "sharegpt": "json",
}
"""Default file name endings."""
