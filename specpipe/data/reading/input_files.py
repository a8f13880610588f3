"""Input files of a dataset: discovery, row counts, and detection of changes since planning."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import pyarrow as pa
import pyarrow.fs

from specpipe.data.columns import PROMPT_COLUMNS
from specpipe.data.locations import Location, locate
from specpipe.data.reading import jsonl, table_formats
from specpipe.errors import DataError

FileKind = Literal["parquet", "arrow", "jsonl"]
_EXTENSIONS: dict[str, FileKind] = {
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
}
_TO_PARQUET = "import pyarrow.csv as c, pyarrow.parquet as p; p.write_table(c.read_csv('FILE'), 'FILE.parquet')"
_CONVERSIONS = {
    "gz": "gunzip --keep FILE",
    "zst": "zstd --decompress FILE",
    "bz2": "bunzip2 --keep FILE",
    "xz": "xz --decompress --keep FILE",
    "zip": "unzip FILE",
    "csv": f'python -c "{_TO_PARQUET}"',
    "tsv": f'python -c "{_TO_PARQUET}"'.replace("'FILE')", "'FILE', parse_options=c.ParseOptions(delimiter='\\t'))"),
}
"""Commands that convert files of formats that are not read, by extension."""
_GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_WILDCARD = re.compile(r"[*?\[]")
_THREADS = 16  # reading footers from an object store is bound by latency


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file of the dataset, with its state at planning time."""

    path: str
    """Absolute path or URI."""
    kind: FileKind
    size: int
    """Bytes."""
    mtime_ns: int
    """Modification time in nanoseconds; 0 where the filesystem stores none."""
    rows: int
    prompt_bytes: int
    """Mean size of a row's prompt columns in bytes. An estimate for shard planning."""
    columns: tuple[str, ...] = ()
    """Column names; empty for JSON lines, which have no schema."""
    offsets: tuple[int, ...] = ()
    """JSON lines: byte offset of every jsonl.STRIDE-th row, from which a shard's rows are sought."""

    def pin(self) -> dict[str, object]:
        """Returns the properties that must be unchanged on resume, as JSON values."""
        return {"path": self.path, "size": self.size, "mtime_ns": self.mtime_ns, "rows": self.rows}


def require_unchanged(file: InputFile) -> None:
    """Raises DataError if a file's size or modification time has changed since the run was planned."""
    location = locate(file.path)
    info = location.filesystem.get_file_info(location.path)
    now = (info.size or 0, info.mtime_ns or 0)
    if now != (file.size, file.mtime_ns):
        raise DataError(
            f"{file.path} has changed since the run was planned: size and modification time (ns) are {now}, "
            f"expected {(file.size, file.mtime_ns)}. Start a new run, or restore the old file"
        )


class _FoundFile(NamedTuple):
    location: Location
    info: Any  # pyarrow.fs.FileInfo
    kind: FileKind


def list_files(
    path: str, format: str = "auto", prompt: str | None = None, *, key: str = "data.path"
) -> list[InputFile]:
    """Returns the dataset's files, sorted by path, with their row counts.

    path: a file, a folder (read recursively) or a glob (`*`, `?`, `[…]`, `**`); local or a URI.
    format: data.format of the job.
    prompt: data.prompt of the job; None for the usual prompt columns.
    key: the path's key in the job file, for messages.
    Raises DataError where no file matches, formats are mixed or unknown, or a file cannot be read.
    """
    if format == "sharegpt":
        raise DataError(
            f"data.format is sharegpt, one JSON array, which cannot be read directly; {jsonl.array_advice(path)}"
        )
    found = _find(path, format, key)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda file: _scan(file, prompt), found))


def _scan(file: _FoundFile, prompt: str | None) -> InputFile:
    location, info, kind = file
    columns: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    prompt_bytes = None
    try:
        if kind == "jsonl":
            rows, offsets = jsonl.scan(location)
        else:
            rows, columns, prompt_bytes = table_formats.scan(location, kind, (prompt,) if prompt else PROMPT_COLUMNS)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{location.text()} cannot be read as {kind}: {error}") from error
    return InputFile(
        path=location.text(),
        kind=kind,
        size=info.size or 0,
        mtime_ns=info.mtime_ns or 0,
        rows=rows,
        prompt_bytes=(info.size or 0) // max(1, rows) if prompt_bytes is None else prompt_bytes,
        columns=columns,
        offsets=offsets,
    )


def _find(path: str, format: str, key: str) -> list[_FoundFile]:
    location = locate(path)
    info = location.filesystem.get_file_info(location.path)
    if info.type == pa.fs.FileType.File:
        return [_FoundFile(location, info, _kind_of(location.path, format))]
    if info.type == pa.fs.FileType.Directory:
        matches = _matches(location, location.path, "**")
    elif _WILDCARD.search(location.path):
        matches = _glob(location)
    else:
        raise DataError(f"{key} {path} does not exist (resolved to {location.text()})")
    found = [
        _FoundFile(location.at(info.path), info, kind)
        for info in matches
        if (kind := _EXTENSIONS.get(_extension(info.path))) is not None and format in ("auto", kind)
    ]
    unread = [info.path for info in matches if _extension(info.path) in _CONVERSIONS]
    if unread and (not found or info.type != pa.fs.FileType.Directory):
        raise DataError(_conversion(unread[0]))
    if not found:
        raise DataError(f"{key} {path} matches no file; expected files that end in {_known_extensions()}")
    kinds = {file.kind for file in found}
    if len(kinds) > 1:
        raise DataError(f"{key} {path} contains {' and '.join(sorted(kinds))} files; choose one with data.format")
    return found


def _conversion(path: str) -> str:
    command = _CONVERSIONS[_extension(path)].replace("FILE", path)
    return f"{path} is in a format that is not read; expected {_known_extensions()}. Convert it with `{command}`"


def _glob(location: Location) -> list[Any]:
    wildcard = _WILDCARD.search(location.path)
    assert wildcard is not None
    base = location.path[: wildcard.start()].rpartition("/")[0] or "/"
    return _matches(location, base, location.path[len(base.rstrip("/")) + 1 :])


def _matches(location: Location, base: str, pattern: str) -> list[Any]:
    """Returns pyarrow.FileInfos of files under `base` whose relative path matches `pattern`, sorted by path.

    Skips hidden files, and what `datasets` caches beside its own files (cache-….arrow).
    """
    regex = _translate(pattern)
    recursive = "/" in pattern or "**" in pattern
    selector = pa.fs.FileSelector(base, recursive=recursive, allow_not_found=True)
    found = []
    for info in location.filesystem.get_file_info(selector):
        relative = info.path[len(base.rstrip("/")) + 1 :]
        hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
        cached = info.base_name.startswith("cache-") and info.base_name.endswith(".arrow")
        if info.type == pa.fs.FileType.File and not hidden and not cached and regex.fullmatch(relative):
            found.append(info)
    return sorted(found, key=lambda info: str(info.path))


def _translate(pattern: str) -> re.Pattern[str]:
    """Translates a glob to a regular expression. `*` matches within one folder, `**` across folders."""
    parts = []
    for token in re.split(r"(\*\*/?|\*|\?|\[!?[^\]]+\])", pattern):
        if token in _GLOB:
            parts.append(_GLOB[token])
        elif token.startswith("[") and token.endswith("]"):
            parts.append(token.replace("[!", "[^", 1).replace("\\", r"\\"))
        else:
            parts.append(re.escape(token))
    return re.compile("".join(parts))


def _kind_of(path: str, format: str) -> FileKind:
    """Returns the format of a file that data.path names directly. Raises DataError for an unknown extension."""
    extension = _extension(path)
    if format in get_args(FileKind):
        return cast(FileKind, format)
    if extension == "json":
        return "jsonl"  # often JSON lines; jsonl.scan rejects an array. Folder scans skip .json: usually metadata.
    if extension in _CONVERSIONS:
        raise DataError(_conversion(path))
    if extension not in _EXTENSIONS:
        raise DataError(f"{path} has none of the extensions {_known_extensions()}; set its format with data.format")
    return _EXTENSIONS[extension]


def _extension(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[2].lower()


def _known_extensions() -> str:
    return ", ".join(f".{name}" for name in _EXTENSIONS)
