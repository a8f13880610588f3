"""A run whose folder is ours to write: what earlier starts have left in it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.data.locations import locate
from specpipe.data.publish import ATTEMPT_PREFIX
from specpipe.pipeline.run.prepare import Prepared
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import Manifest, check_resumable, read_manifest
from specpipe.telemetry.shard_log import ShardLog


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedRun:
    """A folder that is ours to write, and what is done in it."""

    prepared: Prepared
    folder: RunFolder
    manifest: Manifest | None
    done: ShardLog
    """The parts that earlier starts have published; those of this one are added as they come."""
    failed_rows: Mapping[int, int]
    """By shard: how many of its published rows are to be run again."""

    @property
    def is_complete(self) -> bool:
        return self.manifest is not None and len(self.done) == len(self.manifest.shards) and not self.failed_rows

    @property
    def headline(self) -> str:
        """What there is to do, in one line."""
        files = self.prepared.files
        done = f", {len(self.done)} of {len(self.manifest.shards)} shards done" if self.manifest else ""
        job = self.prepared.job
        rows = sum(file.rows for file in files)
        rows = min(rows, job.data.limit or rows) * job.sampling.n
        again = sum(self.failed_rows.values())
        done += f", {again:,} failed rows run again" if again else ""
        return f"{job.name}: {rows:,} rows → {self.folder.path}{done}"


def open_run(prepared: Prepared, folder: RunFolder, *, retry_failed: bool) -> OpenedRun:
    """Under the lock: compare identities, see what is done, sweep up what a crash left."""
    manifest = read_manifest(folder)
    if manifest is None:
        return OpenedRun(prepared=prepared, folder=folder, manifest=None, done=ShardLog(), failed_rows={})
    check_resumable(manifest, prepared.identity, folder)
    done = read_ledger(folder, manifest.shards, manifest.run_id)
    _sweep(folder)
    failed_rows = _failed_rows(done.table()) if retry_failed else {}
    return OpenedRun(prepared=prepared, folder=folder, manifest=manifest, done=done, failed_rows=failed_rows)


def _failed_rows(shards: pa.Table) -> dict[int, int]:
    failed = shards.filter(pc.greater(shards["failed_rows"], 0))
    return dict(zip(failed["shard"].to_pylist(), failed["failed_rows"].to_pylist(), strict=True))


def _sweep(folder: RunFolder) -> None:
    """Delete unfinished files of dead workers. A worker that still lives belongs to an older start and must fail."""
    for name in folder.names("outputs"):
        if name.startswith(ATTEMPT_PREFIX):
            location = locate(folder.file(f"outputs/{name}"))
            with suppress(OSError):
                location.filesystem.delete_file(location.path)
