"""Rows of a published part that have an error: they run again alone and are merged into the part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specpipe.core import Completion, Request, Shard
from specpipe.data import output_schema, output_totals, read_part_footer, to_table, with_added_columns
from specpipe.data.locations import locate
from specpipe.pipeline.failures import ShardError
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import done_record
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_record import RECORDED_SOURCES, SOURCE_FIELDS, ShardRecord


@dataclass(frozen=True, slots=True)
class FailedRows:
    """A published part and its failed rows."""

    table: Any
    """pyarrow.Table of the part."""
    record: ShardRecord
    shard_hash: str
    rows: tuple[int, ...]
    """Numbers of the failed rows within the shard, ascending."""

    @classmethod
    def read(cls, folder: RunFolder, shard: Shard, run_id: str) -> FailedRows | None:
        """Reads the part of a shard. Returns None without a complete part; then all rows of the shard have to run."""
        path = folder.file(folder.part_name(shard.index))
        record, footer = done_record(folder, shard, run_id), read_part_footer(path)
        if record is None or footer is None:
            return None
        location = locate(path)
        try:
            with location.filesystem.open_input_file(location.path) as source:
                table = with_added_columns(pq.ParquetFile(source, page_checksum_verification=True).read())
        except (OSError, ValueError, pa.ArrowException):
            return None
        failed = pc.indices_nonzero(pc.not_equal(table["error"], "")).to_pylist()
        return cls(table, record, footer.shard_hash, tuple(failed))

    def select(
        self, requests: Sequence[Request], refused: Sequence[Completion], shard_hash: str
    ) -> tuple[list[Request], list[Completion]]:
        """Returns the failed ones among the shard's rows, which follow what they had generated before they failed.

        Raises ShardError when the input has changed since.
        """
        if shard_hash != self.shard_hash:
            raise ShardError(
                f"shard {self.record.shard}: its input rows are not those that its part was made from; "
                "restore the input file, or start a new run"
            )
        wanted = set(self.rows)
        return (
            [self._with_own_text(request) for request in requests if request.row in wanted],
            [completion for completion in refused if completion.request.row in wanted],
        )

    def _with_own_text(self, request: Request) -> Request:
        """Returns the request with the tokens of its failed attempt as reference, its earlier answer behind them."""
        tokens = self.table["generated_token_ids"][request.row].as_py()
        return dataclasses.replace(request, reference=(*tokens, *request.reference[len(tokens) :]))

    def merge(self, completions: Sequence[Completion], retry: ShardRecord) -> tuple[Any, ShardRecord]:
        """Returns the part (pyarrow.Table) with these rows in place of failed ones, and the record of both attempts."""
        table = self._merged_rows(completions)
        return table, self._merged_record(table, retry)

    def _merged_rows(self, completions: Sequence[Completion]) -> Any:
        """Returns the part's rows as a pyarrow.Table, with `completions` in place of the failed ones."""
        ordered = sorted(completions, key=lambda completion: completion.request.row)
        assert tuple(completion.request.row for completion in ordered) == self.rows
        renumbered = [
            dataclasses.replace(completion, request=dataclasses.replace(completion.request, row=i))
            for i, completion in enumerate(ordered)
        ]
        published = self.table.select(output_schema().names).cast(output_schema())
        both = pa.concat_tables([published, to_table(renumbered, len(renumbered))])
        source = list(range(published.num_rows))
        for i, row in enumerate(self.rows):
            source[row] = published.num_rows + i
        merged = both.take(source)
        for name in self.table.column_names[len(published.column_names) :]:
            merged = merged.append_column(self.table.schema.field(name), self.table[name])
        return merged

    def _merged_record(self, table: Any, retry: ShardRecord) -> ShardRecord:
        """Work is the sum over both attempts, rows and tokens are those of the merged part, the rest is the retry's.

        The shard starts at its first attempt and ends as long after the first end as the retry took.
        """
        before = self.record
        values = {field.name: getattr(retry, field.name) for field in dataclasses.fields(ShardRecord)}
        for name in _SUMMED_FIELDS:
            values[name] = getattr(before, name) + getattr(retry, name)
        for name in ("ttft", "tpot", "itl"):
            values[name] = _merged_histogram(getattr(before, name), getattr(retry, name))
        verified = before.verified + retry.verified
        for field in dataclasses.fields(verified):
            values[field.name] = getattr(verified, field.name)
        for name in ("k_histogram", "rows_by_followed_share", *_SOURCE_POSITIONS):
            pairs = zip_longest(getattr(before, name), getattr(retry, name), fillvalue=0)
            values[name] = tuple(a + b for a, b in pairs)
        weights = [(one, one.round_ms * one.rounds) for one in (before, retry)]
        weight = sum(ms for _, ms in weights)
        rows = output_totals(table)
        return ShardRecord(
            **values
            | rows
            | {
                "started_at": before.started_at,
                "finished_at": before.finished_at + retry.finished_at - retry.started_at,
                "round_ms": weight / values["rounds"] if values["rounds"] else 0.0,
                "mean_occupancy": sum(one.mean_occupancy * ms for one, ms in weights) / weight if weight else 0.0,
                "tokens_per_s": rows["output_tokens"] / values["busy_s"] if values["busy_s"] else 0.0,
            }
        )


_SOURCE_POSITIONS = tuple(f"{source}_{name}" for source in RECORDED_SOURCES for name in SOURCE_FIELDS[1:])
_SUMMED_FIELDS = (
    "emitted_accepted_tokens",
    "preemptions",
    "uncompiled_forwards",
    "ngram_row_rounds",
    "replay_row_rounds",
    *(f"{source}_drafts" for source in RECORDED_SOURCES),
    "followed_tokens",
    "rounds",
    "busy_s",
    "load_s",
    "prefill_s",
    "draft_s",
    "verify_s",
    "sample_s",
    "host_s",
)


def _merged_histogram(before: LogHistogram, retry: LogHistogram) -> LogHistogram:
    both = LogHistogram.from_dict(before.to_dict())
    both.merge(retry)
    return both
