"""Input files: which there are, how many rows they hold, and what would show that one has changed."""

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
_GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_WILDCARD = re.compile(r"[*?\[]")
_THREADS = 16  # footers of many files on an object store: latency, not work


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file of the dataset, as it was when the run was planned."""

    path: str
    """Absolute path or URI."""
    kind: FileKind
    size: int
    """Bytes."""
    mtime_ns: int
    """0 where the filesystem has none."""
    rows: int
    prompt_bytes: int
    """Mean bytes of a row's prompt columns: an estimate, to plan shards by."""
    columns: tuple[str, ...] = ()
    """Column names; empty for JSON lines, which have none to speak of."""
    offsets: tuple[int, ...] = ()
    """JSON lines: byte offset of every jsonl.STRIDE-th row, so that a shard seeks."""

    def pin(self) -> dict[str, object]:
        """What must be the same on resume, ready for JSON."""
        return {"path": self.path, "size": self.size, "mtime_ns": self.mtime_ns, "rows": self.rows}


def require_unchanged(file: InputFile) -> None:
    """Raises DataError when a file is no longer what it was when the run was planned."""
    location = locate(file.path)
    info = location.filesystem.get_file_info(location.path)
    now = (info.size or 0, info.mtime_ns or 0)
    if now != (file.size, file.mtime_ns):
        raise DataError(
            f"{file.path} has changed since the run was planned (size and time of change {now}, "
            f"then {(file.size, file.mtime_ns)}); start a new run, or put the old file back"
        )


class _FoundFile(NamedTuple):
    location: Location
    info: Any  # pyarrow.fs.FileInfo
    kind: FileKind


def list_files(path: str, format: str = "auto", prompt: str | None = None) -> list[InputFile]:
    """The dataset's files, sorted by path, with their rows counted.

    `path` is a file, a folder (read recursively) or a glob (`*`, `?`, `[…]`, `**`), local or a URI. `format` is
    DataSection's; `prompt` the prompt column's name where it is not a usual one. Raises DataError for nothing found,
    mixed or unknown formats, an unreadable file.
    """
    if format == "sharegpt":
        raise DataError(
            f"data.format is sharegpt, one JSON array, which is not read as it is; {jsonl.array_advice(path)}"
        )
    found = _find(path, format)
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


def _find(path: str, format: str) -> list[_FoundFile]:
    location = locate(path)
    info = location.filesystem.get_file_info(location.path)
    if info.type == pa.fs.FileType.File:
        return [_FoundFile(location, info, _kind_of(location.path, format))]
    if info.type == pa.fs.FileType.Directory:
        found = _below(location, location.path, "**", format)
    elif _WILDCARD.search(location.path):
        found = _glob(location, format)
    else:
        raise DataError(f"data.path {path} is not there (looked for {location.text()})")
    if not found:
        raise DataError(f"data.path {path} matches no file; expected files that end in {_known_extensions()}")
    kinds = {file.kind for file in found}
    if len(kinds) > 1:
        raise DataError(f"data.path {path} holds {' and '.join(sorted(kinds))} files; say which with data.format")
    return found


def _glob(location: Location, format: str) -> list[_FoundFile]:
    wildcard = _WILDCARD.search(location.path)
    assert wildcard is not None
    base = location.path[: wildcard.start()].rpartition("/")[0] or "/"
    return _below(location, base, location.path[len(base.rstrip("/")) + 1 :], format)


def _below(location: Location, base: str, pattern: str, format: str) -> list[_FoundFile]:
    """Files under `base` whose relative path matches. Hidden ones and those of other formats are passed over."""
    matches = _translate(pattern)
    recursive = "/" in pattern or "**" in pattern
    selector = pa.fs.FileSelector(base, recursive=recursive, allow_not_found=True)
    found = []
    for info in location.filesystem.get_file_info(selector):
        relative = info.path[len(base.rstrip("/")) + 1 :]
        hidden = any(part.startswith((".", "_")) for part in relative.split("/"))
        if info.type != pa.fs.FileType.File or hidden or not matches.fullmatch(relative):
            continue
        kind = _EXTENSIONS.get(_extension(info.path))
        if kind is not None and format in ("auto", kind):
            found.append(_FoundFile(location.at(info.path), info, kind))
    return sorted(found, key=lambda file: file.location.path)


def _translate(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: `*` stays within a folder, `**` does not."""
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
    """The format of a file that was named itself. Raises DataError with what to do about other formats."""
    extension = _extension(path)
    if format in get_args(FileKind):
        return cast(FileKind, format)
    if extension == "json":
        return "jsonl"  # lines, often enough; jsonl.scan refuses an array. In folders .json is rather metadata.
    if extension not in _EXTENSIONS:
        raise DataError(f"{path} ends in none of {_known_extensions()}; say what it is with data.format")
    return _EXTENSIONS[extension]


def _extension(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[2].lower()


def _known_extensions() -> str:
    return ", ".join(f".{name}" for name in _EXTENSIONS)
