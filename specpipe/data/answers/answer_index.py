"""Index of earlier answers: a sorted file of row keys, memory-mapped where it is read.

Ten million rows take 400 MB of disk. Building and reading them takes memory for one bucket of about a million records
and for what the system caches.

File: a JSON line, padded to 64 bytes; then one array for each column of records, sorted by key, source and owner.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specpipe.data.answers.answer_files import AnswerFile
from specpipe.data.answers.answer_keys import RowKeys, sample_key
from specpipe.data.locations import locate
from specpipe.data.reading.input_files import InputFile
from specpipe.errors import SpecpipeError

_BUCKET = 1 << 20
"""Records that are sorted at a time: 20 MB, and as much again for their order."""
_FLUSH = 1 << 16
"""Records that are collected before they are written to their buckets."""
_COLUMNS: dict[str, np.dtype[Any]] = {
    "key": np.dtype("<u8"),
    "owner": np.dtype("<u4"),
    "file": np.dtype("<u4"),
    "row": np.dtype("<u4"),
}
_RECORD = np.dtype(list(_COLUMNS.items()))
_ALIGNMENT = 64
_OWNER_BITS = 32
Records = NDArray[Any]


class AnswerPlace(NamedTuple):
    """Position of an answer."""

    file: int
    row: int


def build_answer_index(files: Sequence[AnswerFile], path: str) -> None:
    """Writes the index of these files to a local path. A file that cannot be read is left out, and reported in it."""
    unread: list[str] = []
    with tempfile.TemporaryDirectory(prefix="specpipe-answers-") as folder:
        buckets = _Buckets(Path(folder), 2 * sum(file.file.rows for file in files))
        rows = 0
        for number, file in enumerate(files):
            try:
                rows += buckets.add(number, file)
            except (SpecpipeError, OSError, pa.ArrowException, ValueError, KeyError) as error:
                unread.append(f"{file.file.path}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        sources = np.array([file.source for file in files], np.uint32)
        count = buckets.write_columns(sources)
        header = {
            "fingerprint": answers_fingerprint(files),
            "records": count,
            "rows": rows,
            "unread": unread,
            "files": [dataclasses.asdict(file) for file in files],
        }
        line = json.dumps(header).encode() + b"\n"
        with open(path, "wb") as out:
            out.write(line.rjust(-(-len(line) // _ALIGNMENT) * _ALIGNMENT))
            for name in _COLUMNS:
                with (Path(folder) / name).open("rb") as column:
                    shutil.copyfileobj(column, out)


class _Buckets:
    """Records by the first bits of their key, in files. Sorted buckets behind each other are sorted."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._bits = max(0, (records - 1) // _BUCKET).bit_length()
        self._pending: dict[str, array[int]] = {name: array("Q") for name in _COLUMNS}

    def add(self, number: int, file: AnswerFile) -> int:
        """Adds the keys of a file's rows: by prompt and by identifier. Returns the number of rows."""
        key, owner, files, rows = self._pending.values()
        count = 0
        for row, keys in file.rows():
            owned = keys.identifier >> (64 - _OWNER_BITS)
            for prompt in keys.prompts:
                key.append(sample_key(prompt, keys.sample))
                owner.append(owned)
                files.append(number)
                rows.append(row)
            key.append(sample_key(keys.identifier, keys.sample))
            owner.append(0)
            files.append(number)
            rows.append(row)
            count += 1
            if len(key) >= _FLUSH:
                self._flush()
        self._flush()
        return count

    def _flush(self) -> None:
        """Appends the collected records to their buckets' files, in the order in which they were added."""
        records = np.empty(len(self._pending["key"]), _RECORD)
        for name, values in self._pending.items():
            records[name] = np.frombuffer(values, np.uint64) if values else ()
            del values[:]
        numbers = self._bucket_of(records["key"])
        for number in np.unique(numbers):
            with self._bucket(int(number)).open("ab") as out:
                out.write(records[numbers == number].tobytes())

    def _bucket_of(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return keys >> np.uint64(64 - self._bits) if self._bits else np.zeros(len(keys), np.uint64)

    def _bucket(self, number: int) -> Path:
        return self._folder / f"bucket-{number}"

    def write_columns(self, sources: NDArray[np.uint32]) -> int:
        """Writes the sorted columns and returns the number of their records. sources: by file number."""
        count = 0
        for name in _COLUMNS:
            (self._folder / name).touch()
        for number in range(1 << self._bits):
            if not self._bucket(number).exists():
                continue
            records = _first_of_equal(np.fromfile(self._bucket(number), _RECORD), sources)
            count += len(records)
            for name in _COLUMNS:
                with (self._folder / name).open("ab") as out:
                    out.write(records[name].tobytes())
        return count


def _first_of_equal(records: Records, sources: NDArray[np.uint32]) -> Records:
    """Returns records sorted by key and owner: of each key those of its first source, of each owner the first one."""
    if not len(records):
        return records
    source = sources[records["file"]]
    order = np.lexsort((records["owner"], source, records["key"]))  # stable
    records, source = records[order], source[order]
    new_key = np.concatenate(([True], records["key"][1:] != records["key"][:-1]))
    starts = np.flatnonzero(new_key)
    first_source = source[starts][np.cumsum(new_key) - 1]
    new_owner = new_key | np.concatenate(([True], records["owner"][1:] != records["owner"][:-1]))
    kept: Records = records[(source == first_source) & new_owner]
    return kept


def answers_fingerprint(files: Sequence[AnswerFile]) -> str:
    """Returns a hash of files and their state, by which an index is recognised as current."""
    state = [[file.file.pin(), file.source, file.is_part, file.prompt_column] for file in files]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def read_fingerprint(path: str) -> str:
    """Returns the fingerprint of the index at a local path or URI; "" without a valid one."""
    try:
        with locate(path).open_binary() as file:
            return str(json.loads(file.readline())["fingerprint"])
    except (OSError, ValueError, KeyError):
        return ""


class AnswerIndex:
    """An index file, mapped into memory. May be used by several threads."""

    @classmethod
    def open(cls, path: str) -> AnswerIndex:
        """Opens an index at a local path or URI; of a URI it maps a temporary copy. Raises OSError or ValueError."""
        location = locate(path)
        if location.is_local:
            return cls(location.path)
        with tempfile.NamedTemporaryFile(prefix="specpipe-answers-") as copy:
            with location.open_binary() as source:
                shutil.copyfileobj(source, copy)
            copy.flush()
            return cls(copy.name)

    def __init__(self, path: str) -> None:
        """path: local; may be deleted afterwards. Raises OSError, and ValueError for any other file."""
        with open(path, "rb") as file:
            line = file.readline()
        header = json.loads(line)
        self.rows = int(header["rows"])
        """Rows with an answer, in all files."""
        self.unread: tuple[str, ...] = tuple(header["unread"])
        """One line for each file that could not be read."""
        self.files = tuple(_answer_file(values) for values in header["files"])
        count, at = int(header["records"]), len(line)
        self._columns: dict[str, NDArray[Any]] = {}
        for name, dtype in _COLUMNS.items():
            self._columns[name] = (
                np.memmap(path, dtype, "r", at, (count,)) if count else np.empty(0, dtype)  # an empty map is an error
            )
            at += count * dtype.itemsize

    @property
    def has_texts(self) -> bool:
        """True if a file is a dataset, whose prompts are stored before the chat template."""
        return any(not file.is_part for file in self.files)

    def find(self, rows: Sequence[RowKeys]) -> list[AnswerPlace | None]:
        """Returns for each row the position of the answer to follow; None without one."""
        keys = self._columns["key"]
        candidates = [row.candidates() for row in rows]
        wanted = np.array([key for row in candidates for key in row], np.uint64)
        left, right = (np.searchsorted(keys, wanted, side).tolist() for side in ("left", "right"))
        found: list[AnswerPlace | None] = []
        at = 0
        for row, mine in zip(rows, candidates, strict=True):
            span = next((i for i in range(at, at + len(mine)) if left[i] < right[i]), None)
            found.append(None if span is None else self._place(left[span], right[span], row.identifier))
            at += len(mine)
        return found

    def _place(self, left: int, right: int, identifier: int) -> AnswerPlace:
        """Returns the record of this identifier among those of equal key, else the first."""
        if right - left > 1:
            owners, owner = self._columns["owner"][left:right], identifier >> (64 - _OWNER_BITS)
            at = int(np.searchsorted(owners, owner))
            left += at if at < len(owners) and owners[at] == owner else 0
        return AnswerPlace(int(self._columns["file"][left]), int(self._columns["row"][left]))


def _answer_file(values: Mapping[str, Any]) -> AnswerFile:
    """Returns the file that `dataclasses.asdict` made these JSON values of."""
    file = values["file"]
    file = InputFile(**{**file, "columns": tuple(file["columns"]), "offsets": tuple(file["offsets"])})
    return AnswerFile(**{**values, "file": file})
