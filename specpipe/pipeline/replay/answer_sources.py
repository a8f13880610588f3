"""Files with earlier answers that `speculation.replay` names: parts of runs, and datasets of texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pyarrow.fs

from specpipe.data import InputFile, list_files
from specpipe.data.answers.answer_files import AnswerFile
from specpipe.data.locations import Location, locate
from specpipe.errors import DataError, OutputError
from specpipe.pipeline.prepare import PreparedJob
from specpipe.pipeline.store.folder import MANIFEST, RunFolder, require_lasting
from specpipe.pipeline.store.manifest import Manifest, read_manifest

log = logging.getLogger(__name__)
_WILDCARDS = frozenset("*?[")


def find_answer_files(prepared: PreparedJob) -> tuple[AnswerFile, ...]:
    """Returns the files of `speculation.replay`, the preferred ones first; of a glob of runs, the newest run first.

    A path where nothing is yet gives no file. Raises DataError for a run of a model with another vocabulary, and for a
    dataset that cannot be read.
    """
    job = prepared.job
    found: list[AnswerFile] = []
    for path in job.speculation.replay if job.speculation.replay_k else ():
        require_lasting(path, "speculation.replay")
        source = found[-1].source + 1 if found else 0
        runs = _runs(path, own=RunFolder.at(job.output.path))
        for number, (folder, manifest) in enumerate(runs, source):
            _require_vocabulary(folder, manifest, prepared)
            found += _parts(folder, manifest, number)
        if not runs:
            found += _texts(path, source, job.data.prompt)
    return tuple(found)


def _runs(path: str, own: RunFolder) -> list[tuple[RunFolder, Manifest]]:
    """Returns the runs at a path or glob, or in a folder there, the newest first; without the job's own run."""
    found = [location for location in _matches(locate(path)) if _type(location) == pa.fs.FileType.Directory]
    folders = [inner for location in found for inner in ([location] if _is_run(location) else _folders(location))]
    runs: list[tuple[RunFolder, Manifest]] = []
    for folder in (RunFolder(location.text()) for location in folders if _is_run(location)):
        if folder == own:
            continue
        try:
            manifest = read_manifest(folder)
        except OutputError as error:
            log.warning("its earlier answers are not used: %s", error)
            continue
        if manifest is not None and not manifest.synthetic:
            runs.append((folder, manifest))
    return sorted(runs, key=lambda run: run[1].created_at, reverse=True)


def _matches(location: Location) -> Iterator[Location]:
    """Yields what exists at a path, or at those that match its wildcards, each within one folder."""
    parts = location.path.split("/")
    wild = next((i for i, part in enumerate(parts) if _WILDCARDS & set(part)), None)
    if wild is None:
        if _type(location) != pa.fs.FileType.NotFound:
            yield location
        return
    for info in _listing(location.at("/".join(parts[:wild]) or "/")):
        if fnmatchcase(info.base_name, parts[wild]) and not info.base_name.startswith("."):
            yield from _matches(location.at("/".join((info.path, *parts[wild + 1 :]))))


def _folders(location: Location) -> list[Location]:
    return [location.at(info.path) for info in _listing(location) if info.type == pa.fs.FileType.Directory]


def _listing(location: Location) -> list[Any]:
    """Returns pyarrow.FileInfos of a folder's content; none where it does not exist."""
    selector = pa.fs.FileSelector(location.path, allow_not_found=True)
    try:
        return list(location.filesystem.get_file_info(selector))
    except OSError as error:
        raise DataError(f"speculation.replay: {location.text()} cannot be read: {error}") from error


def _type(location: Location) -> Any:
    return location.filesystem.get_file_info(location.path).type


def _is_run(location: Location) -> bool:
    return bool(_type(location.child(MANIFEST)) == pa.fs.FileType.File)


def _require_vocabulary(folder: RunFolder, manifest: Manifest, prepared: PreparedJob) -> None:
    """Raises DataError unless the run's token ids are those of the job's target."""
    own = prepared.vocabulary()
    if manifest.identity.get("model.target_revision") == prepared.target.revision or (
        own and manifest.vocabulary == own
    ):
        return
    found = "is another one than" if manifest.vocabulary else "may differ from"
    raise DataError(
        f"speculation.replay: {folder.path} has token ids of {manifest.identity.get('model.target')}, whose vocabulary "
        f"{found} that of {prepared.target.name}; expected a run with the same tokenizer. To follow its texts instead, "
        f"name {folder.path}/outputs"
    )


def _parts(folder: RunFolder, manifest: Manifest, source: int) -> Iterator[AnswerFile]:
    """Yields the published parts of a run."""
    root = locate(folder.path)
    infos = {info.base_name: info for info in _listing(root.child("outputs"))}
    for shard in manifest.shards:
        name = folder.part_name(shard.index)
        if (info := infos.get(name.rpartition("/")[2])) is not None:
            file = InputFile(
                path=root.child(name).text(),
                kind="parquet",
                size=info.size or 0,
                mtime_ns=info.mtime_ns or 0,
                rows=shard.rows,
                prompt_bytes=0,
            )
            yield AnswerFile(file=file, source=source, is_part=True)


def _texts(path: str, source: int, prompt_column: str | None) -> Iterator[AnswerFile]:
    """Yields the files of a dataset of texts; nothing where no file is yet."""
    if "**" not in path and not any(True for _ in _matches(locate(path))):
        return
    files: Sequence[InputFile] = list_files(path, prompt=prompt_column, key="speculation.replay")
    first_row = 0
    for file in files:
        yield AnswerFile(file=file, source=source, is_part=False, first_row=first_row, prompt_column=prompt_column)
        first_row += file.rows
