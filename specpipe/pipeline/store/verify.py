"""Proof that a run is complete: every input row exactly once, whole, and counted."""

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

_READERS = 4  # parts that are in memory at once


def verify(path: str, *, fast: bool = False) -> Verification:
    """Hold a run against its manifest and its inputs. Writes nothing.

    `fast` does not read the inputs again: size and time of change then stand for their contents. Raises OutputError
    for a folder that is no run's, and for one that a live run is writing.
    """
    folder = RunFolder.at(path)
    manifest = require_manifest(folder)
    if owner := folder.lock().holder():
        raise OutputError(f"{folder.path} is being written by a live run ({owner}); verify it when that has ended")
    findings = [*_manifest(folder, manifest)]
    inputs = _Inputs(manifest, read=not fast)
    findings += inputs.findings
    said, fine = ShardLog(), ShardLog()  # what parts say, and those about which nothing was found
    for proof in _prove_parts(folder, manifest, inputs.files):
        findings += proof.findings
        if proof.record is not None:
            said.add(proof.record.to_dict())
            if not proof.findings:
                fine.add(proof.record.to_dict())
    findings += _foreign(folder, manifest)
    if len(said) == len(manifest.shards):  # else the next start writes them anew
        findings += _totals(folder, said.table())
    proven = fine.table()
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


def _prove_parts(folder: RunFolder, manifest: Manifest, files: dict[str, InputFile]) -> Iterator[PartCheckResult]:
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
        yield from readers.map(check.prove, paths, manifest.shards)


def _manifest(folder: RunFolder, manifest: Manifest) -> Iterator[Finding]:
    """The manifest against itself: its digest, and shards that cover every row of every input once."""
    said = json.loads(folder.read(MANIFEST) or b"{}").get("run_id")
    if said != manifest.run_id:
        yield _wrong(f"{MANIFEST} was changed: its run_id is {said}, its identity and shards make {manifest.run_id}")
    pins: Sequence[Mapping[str, Any]] = manifest.identity.get("inputs", ())
    ends = dict.fromkeys((str(pin["path"]) for pin in pins), 0)
    row = 0
    for index, shard in enumerate(manifest.shards):
        if (shard.index, shard.first_row, shard.start) != (index, row, ends.get(shard.file)):
            yield _wrong(f"{MANIFEST}: shard {shard.index} does not follow the one before it; rows are lost or doubled")
            return
        ends[shard.file], row = shard.stop, shard.first_row + shard.input_rows
    wanted = sum(int(pin["rows"]) for pin in pins)
    limit = manifest.identity.get("data.limit")
    wanted = wanted if limit is None else min(wanted, int(limit))
    if row != wanted:
        yield _wrong(f"{MANIFEST}: the shards cover {row} rows of {wanted}")


class _Inputs:
    """The inputs as they are now: to be read again where `read`, else compared by size and time of change."""

    def __init__(self, manifest: Manifest, *, read: bool) -> None:
        self.files: dict[str, InputFile] = {}
        self.findings: list[Finding] = []
        used = {shard.file for shard in manifest.shards}
        for pin in manifest.identity.get("inputs", ()):
            if pin["path"] in used:
                try:
                    self._look(pin, manifest.identity, read=read)
                except (DataError, OSError) as error:
                    self.findings.append(_wrong(f"input {pin['path']} cannot be read again: {error}"))

    def _look(self, pin: Mapping[str, Any], identity: Mapping[str, Any], *, read: bool) -> None:
        path = pin["path"]
        if not read:
            info = locate(path).filesystem.get_file_info(locate(path).path)
            now = {"size": info.size or 0, "mtime_ns": info.mtime_ns or 0}
        else:
            (file,) = list_files(path, identity.get("data.format", "auto"), identity.get("data.prompt"))
            self.files[path] = file
            now = {"rows": file.rows}  # contents are compared by hash: a copy with another time is as good
        for name, value in now.items():
            if pin[name] != value:
                self.findings.append(_wrong(f"input {path} has changed: {name} was {pin[name]} and is {value}"))


def _foreign(folder: RunFolder, manifest: Manifest) -> Iterator[Finding]:
    """Files that a reader of the outputs folder would take for rows of this run."""
    ours = {folder.part_name(shard.index).rpartition("/")[2] for shard in manifest.shards}
    for name in folder.names("outputs"):
        if name not in ours and not name.startswith((".", "_")):
            yield _wrong(f"outputs/{name} belongs to no shard of this run; its rows would be read as outputs")


_COUNTS = {
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "failed": "failed_rows",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_draft_tokens": "draft_tokens",
    "spec_decode_accepted_tokens": "accepted_tokens",
    "spec_decode_emitted_accepted_tokens": "emitted_accepted_tokens",
}


def _totals(folder: RunFolder, shards: pa.Table) -> Iterator[Finding]:
    """telemetry/shards.parquet and summary.json against the footers."""
    table, summary = folder.read(SHARDS), folder.read(SUMMARY)
    if table is None or summary is None:
        yield Finding(kind="missing", text=f"{SHARDS} or {SUMMARY} is not there; start the run again to write them")
        return
    try:
        there = pq.read_table(pa.BufferReader(table))
        says = dict(json.loads(summary))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        yield _wrong(f"{SHARDS} or {SUMMARY} cannot be read: {error}; start the run again to write them anew")
        return
    if not there.equals(shards):
        yield _wrong(f"{SHARDS} differs from what stands in the parts' footers")
    for name, field in _COUNTS.items():
        if says.get(name) != total(shards, field):
            yield _wrong(f"{SUMMARY}: {name} is {says.get(name)}, and the parts sum to {total(shards, field)}")


def _wrong(text: str) -> Finding:
    return Finding(kind="wrong", text=text)
