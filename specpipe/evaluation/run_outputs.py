"""Published outputs of a complete run, read in input order, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from specpipe.data.locations import locate
from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import Manifest, require_manifest

_BATCH_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutputs:
    """Outputs of a complete, non-synthetic run."""

    folder: RunFolder
    manifest: Manifest

    @classmethod
    def open(cls, path: str) -> RunOutputs:
        """Opens the run in a folder. Raises OutputError for a missing, incomplete or synthetic run."""
        folder = RunFolder.at(path)
        manifest = require_manifest(folder)
        if manifest.synthetic:
            raise OutputError(
                f"{folder.path} ran with speculation.method: synthetic, which accepts drafts at given rates to measure "
                "speed; its outputs are not the target's text and are not compared, scored or exported"
            )
        published = set(folder.names("outputs"))
        missing = [shard.index for shard in manifest.shards if _part(folder, shard.index) not in published]
        if missing:
            raise OutputError(
                f"{folder.path} is not complete: {len(missing):,} of {len(manifest.shards):,} shards have no outputs "
                "yet. Start the job again to finish it"
            )
        return cls(folder=folder, manifest=manifest)

    @property
    def rows(self) -> int:
        """Number of output rows."""
        return self.manifest.rows

    @property
    def inputs(self) -> list[str]:
        """Paths or URIs of the run's input files."""
        return [str(pin["path"]) for pin in self.manifest.identity["inputs"]]

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yields pyarrow.RecordBatch of at most 1,024 rows. columns: names in the order to return; None for all."""
        for shard in self.manifest.shards:
            location = locate(self.folder.file(RunFolder.part_name(shard.index)))
            with location.filesystem.open_input_file(location.path) as source:
                for batch in pq.ParquetFile(source).iter_batches(_BATCH_ROWS, columns=columns):
                    yield batch if columns is None else batch.select(list(columns))

    def records(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yields output rows as dicts. columns: see `batches`."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()


def _part(folder: RunFolder, shard: int) -> str:
    return folder.part_name(shard).rpartition("/")[2]
