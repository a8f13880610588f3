"""Check of one part: page checksums, rows against the input, telemetry against rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specpipe.core import Shard
from specpipe.data import (
    Row,
    RowHasher,
    expected_identity,
    input_columns,
    output_schema,
    read_part_footer,
    read_rows,
    with_added_columns,
)
from specpipe.data.columns import CONTINUATIONS
from specpipe.data.locations import locate
from specpipe.data.reading.input_files import InputFile
from specpipe.data.requests.row_samples import sample_seed
from specpipe.errors import DataError
from specpipe.pipeline.store.part_consistency import inconsistent_rows, inconsistent_telemetry, wrong
from specpipe.pipeline.store.verification import Finding, limit_row_findings
from specpipe.telemetry.shard_record import ShardRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCheckResult:
    """Result of checking one part. `record` is None where the footer is missing or invalid."""

    record: ShardRecord | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCheck:
    """Settings against which the parts of one run are checked."""

    run_id: str
    job_seed: int
    prompt_column: str | None
    keep: tuple[str, ...]
    files: dict[str, InputFile]
    """Inputs to read again, by path; empty to skip the comparison with inputs."""

    def check(self, path: str, shard: Shard) -> PartCheckResult:
        """Returns record and findings of the part of `shard` at `path`."""
        try:
            record, shard_hash = self._footer(path, shard)
            table = _pages(path)
        except _InvalidPartError as error:
            return PartCheckResult(record=None, findings=(error.finding(shard),))
        findings = [*self._table(table, shard), *inconsistent_telemetry(table, record, shard)]
        if not findings and self.files:
            findings = self._against_input(table, shard, shard_hash)
        return PartCheckResult(record=record, findings=tuple(findings))

    def _footer(self, path: str, shard: Shard) -> tuple[ShardRecord, str]:
        """Returns the record and the hash of the input rows. Raises _InvalidPartError."""
        rows = f"rows {shard.start} to {shard.stop - 1} of {shard.file}"
        try:
            exists = locate(path).filesystem.get_file_info(locate(path).path).is_file
            footer = read_part_footer(path) if exists else None
        except OSError as error:
            raise _InvalidPartError(f"{path} cannot be read: {error}") from None
        if not exists:
            raise _InvalidPartError(f"{path} does not exist ({rows})", missing=True)
        if footer is None:
            raise _InvalidPartError(f"{path} is truncated or was not written by specpipe: its footer cannot be read")
        try:
            record = ShardRecord.from_dict(footer.telemetry)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise _InvalidPartError(f"{path} has invalid telemetry ({type(error).__name__}: {error})") from None
        if record.run_id != self.run_id or record.shard != shard.index:
            raise _InvalidPartError(
                f"{path} is shard {record.shard} of run {record.run_id}; "
                f"expected shard {shard.index} of run {self.run_id}"
            )
        return record, footer.shard_hash

    def _table(self, table: Any, shard: Shard) -> Iterator[Finding]:
        """Checks columns and number of rows, then each row."""
        if table.num_rows != shard.rows:
            yield wrong(shard, f"the part has {table.num_rows} rows; expected {shard.rows}")
        names = [*output_schema().names, *self.keep]
        if table.schema.names != names or not output_schema().equals(table.select(output_schema().names).schema):
            yield wrong(shard, f"the columns are {', '.join(table.schema.names)}; expected {', '.join(names)}")
            return
        yield from limit_row_findings(inconsistent_rows(table, shard))

    def _against_input(self, table: Any, shard: Shard, shard_hash: str) -> list[Finding]:
        """Checks that every input row is there once, in order: ids and seeds by row, contents by the shard's hash."""
        try:
            return limit_row_findings(self._compare(table, shard, shard_hash))
        except (DataError, OSError, KeyError, ValueError, pa.ArrowException) as error:
            return [wrong(shard, f"its input cannot be read: {error}")]

    def _compare(self, table: Any, shard: Shard, shard_hash: str) -> Iterator[Finding]:
        """Yields differences between the part and its input rows."""
        hasher = RowHasher()
        names = ("request_id", "seed", "sample", "error")
        scores = pc.list_value_length(table["scores"]).to_pylist()
        outputs = zip(*(table[name].to_pylist() for name in names), scores, strict=True)
        columns = input_columns(self.prompt_column)
        for i, row in enumerate(read_rows(self.files[shard.file], shard.start, shard.stop, columns)):
            hasher.update(row)
            position = shard.first_row + i
            name, own_seeds = expected_identity(row, position, job_seed=self.job_seed, prompt_column=self.prompt_column)
            given = _continuations(row)
            for sample, (request_id, seed, recorded, error, scored) in enumerate(islice(outputs, shard.samples)):
                at, seeds = i * shard.samples + sample, {sample_seed(own, sample) for own in own_seeds}
                if request_id != name:
                    yield wrong(shard, f"request_id is {request_id!r:.80}; expected {name!r:.80}, the input's", row=at)
                elif recorded != sample:
                    yield wrong(shard, f"sample is {recorded}; expected {sample}", row=at)
                elif seed not in seeds:
                    yield wrong(shard, f"seed is {seed}; expected {' or '.join(map(str, sorted(seeds)))}", row=at)
                elif not error and scored != given:
                    yield wrong(shard, f"{scored} scores; expected {given}, one per continuation of the input", row=at)
        if hasher.hexdigest() != shard_hash:
            yield wrong(shard, f"its input rows ({shard.file}) have changed since it was written: hashes differ")


def _continuations(row: Row) -> int | None:
    """Returns the number of an input row's continuations; None for a row that generates."""
    found = (row.values or {}).get(CONTINUATIONS)
    return len(found) if isinstance(found, list | tuple) else None


class _InvalidPartError(Exception):
    """Part that cannot be checked any further."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self._missing = missing

    def finding(self, shard: Shard) -> Finding:
        """Returns the finding for this error."""
        return Finding(kind="missing" if self._missing else "wrong", shard=shard.index, text=str(self))


def _pages(path: str) -> Any:
    """Returns the part's table after comparing the checksum of every page. Raises _InvalidPartError."""
    location = locate(path)
    try:
        with location.filesystem.open_input_file(location.path) as source:
            return with_added_columns(pq.ParquetFile(source, page_checksum_verification=True).read())
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _InvalidPartError(f"{path} is damaged: {' '.join(str(error).split())}") from None
