"""`specpipe.generate`: makes a job of its arguments, runs it on Ray and reads its outputs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.api.rows import Row, as_path, is_dataset, write_input
from specpipe.data.locations import locate
from specpipe.errors import JobError, SpecpipeError
from specpipe.job import JobSpec
from specpipe.job.job_from_options import job_from_options
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.run import RunResult, Viewer, execute
from specpipe.pipeline.store.folder import PRIVATE, RunFolder
from specpipe.pipeline.store.manifest import read_manifest

if TYPE_CHECKING:
    from ray.data import Dataset


def generate(
    data: Iterable[Row] | pa.Table | Dataset | os.PathLike[str],
    *,
    model: str | None = None,
    draft: str | None = None,
    out: str | os.PathLike[str] | None = None,
    job: str | os.PathLike[str] | JobSpec | None = None,
    sampling: Mapping[str, object] | None = None,
    speculation: Mapping[str, object] | None = None,
    workers: Mapping[str, object] | None = None,
    keep_columns: Sequence[str] | None = None,
    settings: Mapping[str, object] | None = None,
    retry_failed: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> pa.Table | Dataset:
    """Generates text for every row, in order, with the guarantees of `specpipe run`. Blocks.

    data: an iterable of prompts, dicts (columns as in data files), chats (lists of messages) or lists of token ids; a
        pyarrow.Table; a ray.data.Dataset; or a pathlib.Path to files, a folder or a glob.
    model, draft: target and draft, as in a job file. Without a draft model, n-grams of each row are the
        proposer.
    out: folder of the run, local or a URI. With it the same call continues after an interruption, and outputs,
        telemetry and report stay. Without it they are deleted when the call returns. Workers on other machines need
        access to it.
    job: a job file or JobSpec to start from; its data and output are replaced.
    sampling, speculation, workers: keys of these sections of a job file.
    keep_columns: columns of `data` to copy into the output.
    settings: any other key of a job file, by dotted name: {"data.system_prompt": "Be brief."}.
    retry_failed: run rows of an earlier call again that have an error.
    progress: receives a snapshot about once a second.

    Returns a pyarrow.Table with one row for each row of `data` and sample, and the columns of docs/datasets.md; for a
    Dataset a ray.data.Dataset. A row that cannot be run has the reason in `error`.

    Raises SpecpipeError for errors of the caller and for shards that failed in every attempt, and KeyboardInterrupt
    when interrupted.
    """
    if job is None and model is None:
        raise JobError("generate() has neither model nor job; expected a target, or a job that names one")
    sections = {"sampling": sampling, "speculation": speculation, "workers": workers}
    changes = {f"{name}.{key}": value for name, keys in sections.items() for key, value in (keys or {}).items()}
    if keep_columns is not None:
        changes["output.keep_columns"] = list(keep_columns)
    overrides = [_override(key, value) for key, value in {**changes, **(settings or {})}.items()]
    with _run_folder(out) as folder:
        folder.claim()
        source = as_path(data) or write_input(data, folder.file(PRIVATE))
        spec = job_from_options(_job(job), overrides, model=model, draft=draft, data=source, out=folder.path)
        viewer = Viewer(progress=progress) if progress is not None else Viewer()
        _require_complete(execute(spec, viewer=viewer, retry_failed=retry_failed))
        return _dataset(folder, keeps=out is not None) if is_dataset(data) else _table(folder)


@contextmanager
def _run_folder(out: str | os.PathLike[str] | None) -> Iterator[RunFolder]:
    if out is not None:
        yield RunFolder.at(os.fspath(out))
        return
    with tempfile.TemporaryDirectory(prefix="specpipe-") as folder:
        yield RunFolder.at(folder)


def _job(job: str | os.PathLike[str] | JobSpec | None) -> str | JobSpec | None:
    return os.fspath(job) if isinstance(job, os.PathLike) else job


def _override(key: str, value: object) -> str:
    try:
        return f"{key}={json.dumps(value)}"
    except (TypeError, ValueError) as error:
        raise JobError(f"{key} is {value!r:.60}; expected a value that a job file can hold: {error}") from error


def _require_complete(result: RunResult) -> None:
    """Raises unless all shards are published. Failed rows are part of the output; failed shards are not."""
    if result.state == "interrupted":
        raise KeyboardInterrupt(f"{result.folder}: interrupted; the same call with out= continues it")
    if not result.summary["complete"]:
        shard, why = next(iter(result.summary["failed_shards"].items()), ("?", "unknown"))
        raise SpecpipeError(
            f"{result.folder}: {result.summary['published_shards']:,} of {result.summary['total_shards']:,} shards "
            f"could be finished. Shard {shard}: {why}. The same call with out= tries the others again"
        )


def _parts(folder: RunFolder) -> list[str]:
    manifest = read_manifest(folder)
    assert manifest is not None, "a complete run has a manifest"
    return [folder.file(folder.part_name(shard.index)) for shard in manifest.shards]


def _table(folder: RunFolder) -> pa.Table:
    tables = []
    for part in _parts(folder):
        location = locate(part)
        with location.filesystem.open_input_file(location.path) as source:
            tables.append(pq.read_table(source).replace_schema_metadata(None))
    return pa.concat_tables(tables)


def _dataset(folder: RunFolder, *, keeps: bool) -> Any:
    """Returns a ray.data.Dataset of the parts if they are kept, else of a table in memory."""
    import ray.data

    if not keeps:
        return ray.data.from_arrow(_table(folder))
    locations = [locate(part) for part in _parts(folder)]
    return ray.data.read_parquet([place.path for place in locations], filesystem=locations[0].filesystem)
