"""One part under proof: its pages, its rows against the input's, its telemetry against its rows."""

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
from specpipe.pipeline.store.verification import Finding, few
from specpipe.telemetry.shard_record import ShardRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCheckResult:
    """What is known of one part. `record` is None where it cannot be told."""

    record: ShardRecord | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCheck:
    """What parts of one run are held against."""

    run_id: str
    job_seed: int
    prompt_column: str | None
    keep: tuple[str, ...]
    files: dict[str, InputFile]
    """Inputs to read again, by path; empty to leave that out."""

    def prove(self, path: str, shard: Shard) -> PartCheckResult:
        """Everything that can be wrong with the part of a shard that should be at `path`."""
        try:
            record, shard_hash = self._footer(path, shard)
            table = _pages(path)
        except _Unfit as unfit:
            return PartCheckResult(record=None, findings=(unfit.finding(shard),))
        findings = [*self._table(table, shard), *_telemetry(table, record, shard)]
        if not findings and self.files:
            findings = self._against_input(table, shard, shard_hash)
        return PartCheckResult(record=record, findings=tuple(findings))

    def _footer(self, path: str, shard: Shard) -> tuple[ShardRecord, str]:
        rows = f"rows {shard.start} to {shard.stop - 1} of {shard.file}"
        try:
            there = locate(path).filesystem.get_file_info(locate(path).path).is_file
            footer = read_part_footer(path) if there else None
        except OSError as error:
            raise _Unfit(f"{path} cannot be read: {error}") from None
        if not there:
            raise _Unfit(f"{path} is not there ({rows})", missing=True)
        if footer is None:
            raise _Unfit(f"{path} is torn or was not written by specpipe: its footer cannot be read")
        try:
            record = ShardRecord.from_dict(footer.telemetry)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise _Unfit(f"{path} has no telemetry that can be read ({type(error).__name__}: {error})") from None
        if record.run_id != self.run_id or record.shard != shard.index:
            raise _Unfit(f"{path} belongs to shard {record.shard} of run {record.run_id}, not to this one")
        return record, footer.shard_hash

    def _table(self, table: Any, shard: Shard) -> Iterator[Finding]:
        """Columns and counts of rows."""
        if table.num_rows != shard.rows:
            yield _wrong(shard, f"the part has {table.num_rows} rows; expected {shard.rows}")
        names = [*output_schema().names, *self.keep]
        if table.schema.names != names or not output_schema().equals(table.select(output_schema().names).schema):
            yield _wrong(shard, f"the columns are {', '.join(table.schema.names)}; expected {', '.join(names)}")
            return
        yield from few(_rows(table, shard))

    def _against_input(self, table: Any, shard: Shard, shard_hash: str) -> list[Finding]:
        """Every input row exactly once and in its place: names and seeds row by row, contents by the shard's hash."""
        try:
            return few(self._compare(table, shard, shard_hash))
        except (DataError, OSError, KeyError, ValueError, pa.ArrowException) as error:
            return [_wrong(shard, f"its input cannot be read again: {error}")]

    def _compare(self, table: Any, shard: Shard, shard_hash: str) -> Iterator[Finding]:
        hasher = RowHasher()
        outputs = zip(
            table["request_id"].to_pylist(), table["seed"].to_pylist(), table["sample"].to_pylist(), strict=True
        )
        columns = input_columns(self.prompt_column)
        for i, row in enumerate(read_rows(self.files[shard.file], shard.start, shard.stop, columns)):
            hasher.update(row)
            position = shard.first_row + i
            name, may = expected_identity(row, position, job_seed=self.job_seed, prompt_column=self.prompt_column)
            for sample, (request_id, seed, said) in enumerate(islice(outputs, shard.samples)):
                at, seeds = i * shard.samples + sample, {sample_seed(own, sample) for own in may}
                if request_id != name:
                    yield _wrong(shard, f"request_id is {request_id!r:.80}; the input row is {name!r:.80}", row=at)
                elif said != sample:
                    yield _wrong(shard, f"sample is {said}; expected {sample}", row=at)
                elif seed not in seeds:
                    yield _wrong(shard, f"seed is {seed}; expected {' or '.join(map(str, sorted(seeds)))}", row=at)
        if hasher.hexdigest() != shard_hash:
            yield _wrong(shard, f"its input rows ({shard.file}) are not those that it was made from: hashes differ")


class _Unfit(Exception):
    """A part that there is nothing more to say about."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self._missing = missing

    def finding(self, shard: Shard) -> Finding:
        return Finding(kind="missing" if self._missing else "wrong", shard=shard.index, text=str(self))


def _wrong(shard: Shard, text: str, row: int | None = None) -> Finding:
    return Finding(kind="wrong", shard=shard.index, row=row, text=text)


def _pages(path: str) -> Any:
    """The part's table, every page's checksum compared."""
    location = locate(path)
    try:
        with location.filesystem.open_input_file(location.path) as source:
            return pq.ParquetFile(source, page_checksum_verification=True).read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _Unfit(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _rows(table: Any, shard: Shard) -> Iterator[Finding]:
    """What a row says about itself must fit together."""
    lengths = pc.list_value_length(table["generated_token_ids"]).to_pylist()
    counts, errors = table["num_generated_tokens"].to_pylist(), table["error"].to_pylist()
    accepted, reasons = table["accepted_tokens"].to_pylist(), table["finish_reason"].to_pylist()
    told = [pc.list_value_length(table[name]).to_pylist() for name in LOGPROB_COLUMNS]
    for i, reason in enumerate(reasons):
        if reason not in ("stop", "length", "error") or (reason == "error") != bool(errors[i]):
            yield _wrong(shard, f"finish_reason is {reason!r:.40} and error is {errors[i]!r:.80}", row=i)
        elif lengths[i] != counts[i]:
            yield _wrong(shard, f"{lengths[i]} token ids, and num_generated_tokens is {counts[i]}", row=i)
        elif not 0 <= accepted[i] <= counts[i]:
            yield _wrong(shard, f"accepted_tokens is {accepted[i]} of {counts[i]} generated tokens", row=i)
        elif {lengths[i] for lengths in told} not in ({None}, {counts[i]}):
            yield _wrong(shard, f"log-probabilities of {told[0][i]} tokens, and {counts[i]} generated tokens", row=i)


def _telemetry(table: Any, record: ShardRecord, shard: Shard) -> Iterator[Finding]:
    """Sums of the rows, and of the record's own parts."""
    if not set(output_schema().names) <= set(table.schema.names):
        return  # said already
    counts = record.verified
    pairs = [
        *((name, getattr(record, name), summed) for name, summed in output_totals(table).items()),
        ("drafts", counts.drafts, counts.recovered_tokens + counts.bonus_tokens),
        ("draft_tokens", counts.draft_tokens, sum(counts.proposed_per_position)),
        ("accepted_tokens", counts.accepted_tokens, sum(counts.accepted_per_position)),
    ]
    for name, said, summed in pairs:
        if said != summed:
            yield _wrong(shard, f"telemetry does not add up: {name} is {said}, and its parts sum to {summed}")
    phases = record.prefill_s + record.draft_s + record.verify_s + record.sample_s + record.host_s
    if not math.isclose(record.busy_s, phases, rel_tol=1e-6, abs_tol=1e-6):
        yield _wrong(shard, f"telemetry does not add up: busy_s is {record.busy_s}, and its phases sum to {phases}")
