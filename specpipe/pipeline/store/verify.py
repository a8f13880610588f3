"""Verification of a run: every input row has exactly one valid output per sample, and all totals agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data import InputFile, list_files
from specpipe.data.locations import locate
from specpipe.errors import DataError, OutputError
from specpipe.pipeline.store.folder import MANIFEST, SHARDS, SUMMARY, RunFolder
from specpipe.pipeline.store.manifest import Manifest, require_manifest
from specpipe.pipeline.store.part_check import PartCheck, PartCheckResult
from specpipe.pipeline.store.verification import Finding, Verification
from specpipe.telemetry.shard_log import ShardLog
from specpipe.telemetry.shard_table import total

_READERS = 4  # parts in memory at once


def verify(path: str, *, fast: bool = False) -> Verification:
    """Checks a run against its manifest and its inputs. Writes nothing.

    With `fast`, inputs are compared by size and modification time instead of contents. Raises OutputError for a folder
    without a run, and for one that a live run is writing.
    """
    folder = RunFolder.at(path)
    manifest = require_manifest(folder)
    if owner := folder.lock().holder():
        raise OutputError(f"{folder.path} is being written by a live run ({owner}); verify it after the run has ended")
    findings = [*_manifest(folder, manifest)]
    inputs = _Inputs(manifest, read=not fast)
    findings += inputs.findings
    readable, valid = ShardLog(), ShardLog()  # records of parts with a footer, and of parts without findings
    for part in _check_parts(folder, manifest, inputs.files):
        findings += part.findings
        if part.record is not None:
            readable.add(part.record.to_dict())
            if not part.findings:
                valid.add(part.record.to_dict())
    findings += _foreign(folder, manifest)
    if len(readable) == len(manifest.shards):  # with missing parts the next start writes new totals
        findings += _totals(folder, readable.table())
    proven = valid.table()
    return Verification(
        folder=folder.path,
        run_id=manifest.run_id,
        fast=fast,
        shards=len(manifest.shards),
        rows=manifest.rows,
        verified_shards=proven.num_rows,
        verified_rows=total(proven, "rows"),
        failed_rows=total(proven, "failed_rows"),
        max_failed_rows=int(manifest.tuning.get("output.max_failed_rows", 0)),
        findings=findings,
    )


def _check_parts(folder: RunFolder, manifest: Manifest, files: dict[str, InputFile]) -> Iterator[PartCheckResult]:
    """Yields the result of each shard's part, in order. `files`: inputs to read again, by path."""
    identity = manifest.identity
    check = PartCheck(
        run_id=manifest.run_id,
        job_seed=int(identity["seed"]),
        prompt_column=identity.get("data.prompt"),
        keep=tuple(identity.get("output.keep_columns", ())),
        files=files,
    )
    with ThreadPoolExecutor(_READERS) as readers:
        paths = [folder.file(folder.part_name(shard.index)) for shard in manifest.shards]
        yield from readers.map(check.check, paths, manifest.shards)


def _manifest(folder: RunFolder, manifest: Manifest) -> Iterator[Finding]:
    """Checks the manifest's run_id, and that its shards cover every row of every input once."""
    recorded = json.loads(folder.read(MANIFEST) or b"{}").get("run_id")
    if recorded != manifest.run_id:
        yield _wrong(
            f"{MANIFEST} was changed: its run_id is {recorded}; expected {manifest.run_id} for its identity and shards"
        )
    pins: Sequence[Mapping[str, Any]] = manifest.identity.get("inputs", ())
    ends = dict.fromkeys((str(pin["path"]) for pin in pins), 0)
    row = 0
    for index, shard in enumerate(manifest.shards):
        if (shard.index, shard.first_row, shard.start) != (index, row, ends.get(shard.file)):
            yield _wrong(
                f"{MANIFEST}: shard {shard.index} does not follow the one before it; rows are missing or duplicated"
            )
            return
        ends[shard.file], row = shard.stop, shard.first_row + shard.input_rows
    expected = sum(int(pin["rows"]) for pin in pins)
    limit = manifest.identity.get("data.limit")
    expected = expected if limit is None else min(expected, int(limit))
    if row != expected:
        yield _wrong(f"{MANIFEST}: the shards cover {row} rows; expected {expected}")


class _Inputs:
    """Present state of the inputs: readable files where `read`, else compared by size and modification time."""

    def __init__(self, manifest: Manifest, *, read: bool) -> None:
        self.files: dict[str, InputFile] = {}
        self.findings: list[Finding] = []
        used = {shard.file for shard in manifest.shards}
        for pin in manifest.identity.get("inputs", ()):
            if pin["path"] in used:
                try:
                    self._compare(pin, manifest.identity, read=read)
                except (DataError, OSError) as error:
                    self.findings.append(_wrong(f"input {pin['path']} cannot be read: {error}"))

    def _compare(self, pin: Mapping[str, Any], identity: Mapping[str, Any], *, read: bool) -> None:
        """Adds findings for an input that differs from its pin."""
        path = pin["path"]
        if not read:
            info = locate(path).filesystem.get_file_info(locate(path).path)
            now = {"size": info.size or 0, "mtime_ns": info.mtime_ns or 0}
        else:
            (file,) = list_files(path, identity.get("data.format", "auto"), identity.get("data.prompt"))
            self.files[path] = file
            now = {"rows": file.rows}  # contents are compared by hash, so a copy with another time is valid
        for name, value in now.items():
            if pin[name] != value:
                self.findings.append(_wrong(f"input {path} has changed: {name} was {pin[name]} and is {value}"))


def _foreign(folder: RunFolder, manifest: Manifest) -> Iterator[Finding]:
    """Yields files that a reader of the folder outputs would read as rows of this run."""
    parts = {folder.part_name(shard.index).rpartition("/")[2] for shard in manifest.shards}
    for name in folder.names("outputs"):
        if name not in parts and not name.startswith((".", "_")):
            yield _wrong(
                f"outputs/{name} belongs to no shard of this run, but its rows would be read as outputs; delete it"
            )


_SUMMARY_COLUMNS = {
    "total_input_tokens": "input_tokens",
    "total_cached_tokens": "cached_tokens",
    "total_output_tokens": "output_tokens",
    "total_scored_tokens": "scored_tokens",
    "failed": "failed_rows",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_draft_tokens": "draft_tokens",
    "spec_decode_accepted_tokens": "accepted_tokens",
    "spec_decode_emitted_accepted_tokens": "emitted_accepted_tokens",
}


def _totals(folder: RunFolder, shards: pa.Table) -> Iterator[Finding]:
    """Checks telemetry/shards.parquet and summary.json against the parts' footers."""
    table, summary = folder.read(SHARDS), folder.read(SUMMARY)
    if table is None or summary is None:
        yield Finding(kind="missing", text=f"{SHARDS} or {SUMMARY} does not exist; start the run again to write them")
        return
    try:
        recorded = pq.read_table(pa.BufferReader(table))
        totals = dict(json.loads(summary))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        yield _wrong(f"{SHARDS} or {SUMMARY} cannot be read: {error}; start the run again to rewrite them")
        return
    present = [name for name in shards.schema.names if name in recorded.schema.names]  # older versions had fewer
    if not recorded.equals(shards.select(present)):
        yield _wrong(f"{SHARDS} differs from the parts' footers")
    for name, field in _SUMMARY_COLUMNS.items():
        if totals.get(name) != total(shards, field):
            yield _wrong(
                f"{SUMMARY}: {name} is {totals.get(name)}; expected {total(shards, field)}, the sum of the parts"
            )


def _wrong(text: str) -> Finding:
    """Returns a finding about the whole run."""
    return Finding(kind="wrong", text=text)
