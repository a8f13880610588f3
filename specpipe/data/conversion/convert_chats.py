"""Streaming conversion of chat files to a Parquet dataset, with counts of converted, mapped and skipped records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from specpipe.data.conversion.chat_records import CHAT_KEYS, TurnChoice, chat_prompt, chat_turns
from specpipe.data.locations import locate
from specpipe.data.publish import publish_file
from specpipe.data.reading.dataset_rows import as_text, utf8
from specpipe.data.reading.json_records import read_records
from specpipe.errors import DataError, InputError, JobError

_BATCH_ROWS = 4096
_BATCH_BYTES = 8 << 20
_OWN = ("id", "messages", "answer")
_IDS = ("id", "request_id", "custom_id", "conversation_id")
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@dataclass(kw_only=True, slots=True)
class ConvertReport:
    """Counts of a conversion."""

    out: str
    """Absolute path or URI of the Parquet file."""
    records: int = 0
    written: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Skipped records by reason."""
    turns: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Turns of all records by speaker and role; role "" for an unknown speaker."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Records by a key that was dropped."""


def convert_chats(
    source: str, out: str, *, take: TurnChoice | None = None, keep: Sequence[str] = (), overwrite: bool = False
) -> ConvertReport:
    """Writes the prompts of a chat file as Parquet, with the columns id, messages and answer, then `keep` as text.

    source: a JSON array or JSON lines of ShareGPT conversations or OpenAI messages, local or a URI.
    take: see chat_records.chat_prompt; None for "first" of conversations and "all" of messages.
    Holds one batch of rows in memory. Raises DataError if the source cannot be read or contains no chat, JobError for
    an invalid `keep` or an existing `out`; then nothing is written.
    """
    _check(source, out, keep, overwrite)
    report = ConvertReport(out=locate(out).text())
    schema = pa.schema([("id", pa.string()), ("messages", _MESSAGES), ("answer", pa.string())])
    for name in keep:
        schema = schema.append(pa.field(name, pa.string()))
    try:
        with publish_file(out) as path, _Batches(path, schema) as batches:
            for record in read_records(locate(source)):
                if (row := _row(record, take, keep, report)) is not None:
                    batches.add(row)
            if not report.written:
                raise DataError(_no_chats_message(source, report))
    except OSError as error:
        raise JobError(f"{source} cannot be converted to {out}: {error}") from error
    return report


def _check(source: str, out: str, keep: Sequence[str], overwrite: bool) -> None:
    if taken := [name for name in keep if name in _OWN]:
        raise JobError(f"--keep {taken[0]}: every output has a column of that name; expected other keys")
    given = locate(source)
    if given.filesystem.get_file_info(given.path).type != pa.fs.FileType.File:
        raise DataError(f"{source} is not a file (resolved to {given.text()}); expected a JSON file of chats")
    target = locate(out)
    if target.text() == given.text():
        raise JobError(f"{out} is the input file; expected another file with --out")
    if not overwrite and target.filesystem.get_file_info(target.path).type != pa.fs.FileType.NotFound:
        raise JobError(f"{out} already exists; expected another --out, or --overwrite")


def _row(
    record: object, take: TurnChoice | None, keep: Sequence[str], report: ConvertReport
) -> dict[str, object] | None:
    """Returns a record as an output row, None for a skipped one. Counts it in `report`."""
    report.records += 1
    try:
        if isinstance(record, InputError):
            raise InputError("a line that is not a JSON object")
        turns = chat_turns(record)
        report.turns.update((turn.speaker[:40], turn.role or "") for turn in turns)
        values: Mapping[str, object] = record if isinstance(record, Mapping) else {}
        chat = chat_prompt(turns, take or ("first" if values.get("conversations") is not None else "all"))
    except InputError as error:
        report.skipped[str(error)] += 1
        return None
    named = next((str(values[key]) for key in _IDS if isinstance(values.get(key), str | int)), None)
    known = {*CHAT_KEYS, *_IDS, *keep, "system"}
    report.left_out.update(key for key, value in values.items() if key not in known and value not in (None, "", [], {}))
    report.written += 1
    row: dict[str, object] = {"id": None if named is None else utf8(named)}
    row |= {"messages": list(chat.messages), "answer": chat.answer}
    return row | {name: as_text(values.get(name)) for name in keep}


def _no_chats_message(source: str, report: ConvertReport) -> str:
    reasons = "; ".join(f"{reason}: {count:,}" for reason, count in report.skipped.most_common(3))
    return (
        f"{source} contains no chat with a prompt ({report.records:,} records{'; ' + reasons if reasons else ''}); "
        "expected ShareGPT conversations or OpenAI messages, as one JSON array or one object per line"
    )


class _Batches:
    """Writer of rows to a Parquet file, one row group at a time."""

    def __init__(self, path: str, schema: Any) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._schema = schema
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def add(self, row: dict[str, object]) -> None:
        """Buffers a row; writes a row group at _BATCH_ROWS rows or _BATCH_BYTES bytes."""
        self._rows.append(row)
        self._bytes += sum(map(len, map(str, row.values())))
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0

    def __enter__(self) -> _Batches:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if kind is None and self._rows:
            self._flush()
        self._writer.close()
