"""Input rows of a run with their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specpipe.data import list_files, read_rows
from specpipe.errors import OutputError
from specpipe.evaluation.run_outputs import RunOutputs


class AnsweredRow(NamedTuple):
    """An input row and its outputs."""

    values: Mapping[str, object]
    """Values of the requested columns; empty for an unreadable row."""
    outputs: Sequence[Mapping[str, Any]]
    """Output rows, one per sample of the job."""


def answered_rows(run: RunOutputs, columns: Sequence[str]) -> Iterator[AnsweredRow]:
    """Yields input rows with their outputs, in input order. columns: input columns to read.

    Holds one batch in memory. Raises OutputError if an input file has changed since the run.
    """
    identity = run.manifest.identity
    found = list_files(identity["data.path"], identity["data.format"], identity["data.prompt"])
    files = {file.path: file for file in found}
    pins = {pin["path"]: pin for pin in identity["inputs"]}
    rows = run.records()
    for shard in run.manifest.shards:
        if shard.file not in files or files[shard.file].pin() != pins[shard.file]:
            raise OutputError(
                f"{shard.file} is missing or changed since {run.folder.path} read it; expected the same file, because "
                "the outputs are joined with its rows"
            )
        for row in read_rows(files[shard.file], shard.start, shard.stop, list(columns)):
            yield AnsweredRow(row.values or {}, [next(rows) for _ in range(shard.samples)])
