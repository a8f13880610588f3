"""Check of one part: page checksums, rows against the input, telemetry against rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specpipe.core import Shard
from specpipe.data import (
    RowHasher,
    expected_identity,
    input_columns,
    output_schema,
    output_totals,
    read_part_footer,
    read_rows,
)
from specpipe.data.columns import LOGPROB_COLUMNS
from specpipe.data.locations import locate
from specpipe.data.reading.input_files import InputFile
from specpipe.data.requests.row_samples import sample_seed
from specpipe.errors import DataError
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
        findings = [*self._table(table, shard), *_telemetry(table, record, shard)]
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
            yield _wrong(shard, f"the part has {table.num_rows} rows; expected {shard.rows}")
        names = [*output_schema().names, *self.keep]
        if table.schema.names != names or not output_schema().equals(table.select(output_schema().names).schema):
            yield _wrong(shard, f"the columns are {', '.join(table.schema.names)}; expected {', '.join(names)}")
            return
        yield from limit_row_findings(_rows(table, shard))

    def _against_input(self, table: Any, shard: Shard, shard_hash: str) -> list[Finding]:
        """Checks that every input row is there once, in order: ids and seeds by row, contents by the shard's hash."""
        try:
            return limit_row_findings(self._compare(table, shard, shard_hash))
        except (DataError, OSError, KeyError, ValueError, pa.ArrowException) as error:
            return [_wrong(shard, f"its input cannot be read: {error}")]

    def _compare(self, table: Any, shard: Shard, shard_hash: str) -> Iterator[Finding]:
        """Yields differences between the part and its input rows."""
        hasher = RowHasher()
        outputs = zip(
            table["request_id"].to_pylist(), table["seed"].to_pylist(), table["sample"].to_pylist(), strict=True
        )
        columns = input_columns(self.prompt_column)
        for i, row in enumerate(read_rows(self.files[shard.file], shard.start, shard.stop, columns)):
            hasher.update(row)
            position = shard.first_row + i
            name, own_seeds = expected_identity(row, position, job_seed=self.job_seed, prompt_column=self.prompt_column)
            for sample, (request_id, seed, recorded) in enumerate(islice(outputs, shard.samples)):
                at, seeds = i * shard.samples + sample, {sample_seed(own, sample) for own in own_seeds}
                if request_id != name:
                    yield _wrong(shard, f"request_id is {request_id!r:.80}; expected {name!r:.80}, the input's", row=at)
                elif recorded != sample:
                    yield _wrong(shard, f"sample is {recorded}; expected {sample}", row=at)
                elif seed not in seeds:
                    yield _wrong(shard, f"seed is {seed}; expected {' or '.join(map(str, sorted(seeds)))}", row=at)
        if hasher.hexdigest() != shard_hash:
            yield _wrong(shard, f"its input rows ({shard.file}) have changed since it was written: hashes differ")


class _InvalidPartError(Exception):
    """Part that cannot be checked any further."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self._missing = missing

    def finding(self, shard: Shard) -> Finding:
        """Returns the finding for this error."""
        return Finding(kind="missing" if self._missing else "wrong", shard=shard.index, text=str(self))


def _wrong(shard: Shard, text: str, row: int | None = None) -> Finding:
    """Returns a finding about a shard or one of its rows."""
    return Finding(kind="wrong", shard=shard.index, row=row, text=text)


def _pages(path: str) -> Any:
    """Returns the part's table after comparing the checksum of every page. Raises _InvalidPartError."""
    location = locate(path)
    try:
        with location.filesystem.open_input_file(location.path) as source:
            return pq.ParquetFile(source, page_checksum_verification=True).read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _InvalidPartError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _rows(table: Any, shard: Shard) -> Iterator[Finding]:
    """Yields rows whose columns contradict each other."""
    lengths = pc.list_value_length(table["generated_token_ids"]).to_pylist()
    counts, errors = table["num_generated_tokens"].to_pylist(), table["error"].to_pylist()
    accepted, reasons = table["accepted_tokens"].to_pylist(), table["finish_reason"].to_pylist()
    logprob_lengths = [pc.list_value_length(table[name]).to_pylist() for name in LOGPROB_COLUMNS]
    for i, reason in enumerate(reasons):
        if reason not in ("stop", "length", "error") or (reason == "error") != bool(errors[i]):
            expected = "expected stop or length, or error with a text"
            yield _wrong(shard, f"finish_reason is {reason!r:.40}, error is {errors[i]!r:.80}; {expected}", row=i)
        elif lengths[i] != counts[i]:
            yield _wrong(
                shard, f"num_generated_tokens is {counts[i]}; expected {lengths[i]}, the number of token ids", row=i
            )
        elif not 0 <= accepted[i] <= counts[i]:
            yield _wrong(
                shard,
                f"accepted_tokens is {accepted[i]}; expected 0 to {counts[i]}, the number of generated tokens",
                row=i,
            )
        elif {lengths[i] for lengths in logprob_lengths} not in ({None}, {counts[i]}):
            yield _wrong(
                shard,
                f"log-probabilities of {logprob_lengths[0][i]} tokens; expected {counts[i]}, one per generated token",
                row=i,
            )


def _telemetry(table: Any, record: ShardRecord, shard: Shard) -> Iterator[Finding]:
    """Checks the record against the sums of the rows and of its own positions and phases."""
    if not set(output_schema().names) <= set(table.schema.names):
        return  # reported by _table
    counts = record.verified
    pairs = [
        *((name, getattr(record, name), summed) for name, summed in output_totals(table).items()),
        ("drafts", counts.drafts, counts.recovered_tokens + counts.bonus_tokens),
        ("draft_tokens", counts.draft_tokens, sum(counts.proposed_per_position)),
        ("accepted_tokens", counts.accepted_tokens, sum(counts.accepted_per_position)),
    ]
    for name, recorded, summed in pairs:
        if recorded != summed:
            yield _wrong(shard, f"telemetry does not add up: {name} is {recorded}; expected the sum {summed}")
    phases = record.prefill_s + record.draft_s + record.verify_s + record.sample_s + record.host_s
    if not math.isclose(record.busy_s, phases, rel_tol=1e-6, abs_tol=1e-6):
        yield _wrong(
            shard, f"telemetry does not add up: busy_s is {record.busy_s}; expected the sum of its phases {phases}"
        )
