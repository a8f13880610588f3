"""The input rows of a run, each with its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specpipe.data import list_files, read_rows
from specpipe.errors import OutputError
from specpipe.evaluation.run_outputs import RunOutputs


class AnsweredRow(NamedTuple):
    """An input row and what was generated for it."""

    values: Mapping[str, object]
    """The columns that were asked for; empty for a row that could not be read."""
    outputs: Sequence[Mapping[str, Any]]
    """Output rows: one for each of the job's samples."""


def answered_rows(run: RunOutputs, columns: Sequence[str]) -> Iterator[AnsweredRow]:
    """In input order, a batch in memory. Raises OutputError where an input file is no longer what the run read."""
    identity = run.manifest.identity
    found = list_files(identity["data.path"], identity["data.format"], identity["data.prompt"])
    files = {file.path: file for file in found}
    pins = {pin["path"]: pin for pin in identity["inputs"]}
    rows = run.records()
    for shard in run.manifest.shards:
        if shard.file not in files or files[shard.file].pin() != pins[shard.file]:
            raise OutputError(
                f"{shard.file} is gone or has changed since {run.folder.path} read it; expected the same file, because "
                "the outputs are put together with its rows"
            )
        for row in read_rows(files[shard.file], shard.start, shard.stop, list(columns)):
            yield AnsweredRow(row.values or {}, [next(rows) for _ in range(shard.samples)])
