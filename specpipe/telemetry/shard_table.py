"""Sums over a shard table, column by column, because a run may have a hundred thousand shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specpipe.core import AcceptanceCounts, DraftSource, Evidence, ProposerName
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_record import RECORDED_SOURCES, SOURCE_FIELDS

_WINDOW = 8192  # rows whose histograms are merged at once; each has some 50 buckets


def total(table: pa.Table, name: str) -> Any:
    """Returns the sum of a column of numbers: an int, or a float for a column of floats."""
    zero = 0.0 if pa.types.is_floating(table.schema.field(name).type) else 0
    return pc.sum(table[name]).as_py() or zero


def by_position(table: pa.Table, name: str) -> tuple[int, ...]:
    """Returns the sums by position over a column of lists, up to the length of the longest list."""
    if not table.num_rows:
        return ()
    lists = table[name]
    values = pc.list_flatten(lists).to_numpy()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    positions = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    sums = np.zeros(lengths.max(initial=0), np.int64)
    np.add.at(sums, positions, values)
    return tuple(sums.tolist())


def acceptance(table: pa.Table) -> AcceptanceCounts:
    """Returns the sums of the shards' acceptance counts."""
    counts: dict[str, Any] = {}
    for field in dataclasses.fields(AcceptanceCounts):
        sums = by_position if pa.types.is_list(table.schema.field(field.name).type) else total
        counts[field.name] = sums(table, field.name)
    return AcceptanceCounts(**counts)


def acceptance_by_source(table: pa.Table) -> dict[DraftSource, AcceptanceCounts]:
    """Returns the sums of the shards' acceptance counts by source of the drafts, without recovered and bonus tokens.

    Sources without a draft are absent.
    """
    rest = acceptance(table)
    found: dict[DraftSource, AcceptanceCounts] = {}
    for source in RECORDED_SOURCES:
        drafts = total(table, f"{source}_drafts")
        positions = {name: by_position(table, f"{source}_{name}") for name in SOURCE_FIELDS[1:]}
        found[source] = _counts(drafts, positions)
        left = {name: _subtract(getattr(rest, name), counts) for name, counts in positions.items()}
        rest = _counts(rest.drafts - drafts, left)
    return {source: counts for source, counts in {"draft": rest, **found}.items() if counts.drafts}


def _counts(drafts: int, positions: Mapping[str, tuple[int, ...]]) -> AcceptanceCounts:
    """Returns counts with these sums by position, up to the last one that was reached."""
    length = _length(positions["reached_per_position"])
    kept = {name: (*counts[:length], *[0] * (length - len(counts))) for name, counts in positions.items()}
    return AcceptanceCounts(
        drafts=drafts,
        draft_tokens=sum(positions["proposed_per_position"]),
        accepted_tokens=sum(positions["accepted_per_position"]),
        proposed_per_position=kept["proposed_per_position"],
        reached_per_position=kept["reached_per_position"],
        accepted_per_position=kept["accepted_per_position"],
    )


def _length(counts: tuple[int, ...]) -> int:
    """Returns the number of positions up to the last one that is not 0."""
    return next((i for i in range(len(counts), 0, -1) if counts[i - 1]), 0)


def evidence(table: pa.Table) -> Evidence:
    """Returns the evidence in a shard table: acceptance and rows. It holds no costs.

    Acceptance of n-grams is left out where rows also followed earlier answers, whose rounds fall back to n-grams; that
    of earlier answers themselves depends on the answers, which another start may replace.
    """
    by_source = acceptance_by_source(table)
    ngram_rows, replay_rows = total(table, "ngram_row_rounds"), total(table, "replay_row_rounds")
    row_rounds: dict[ProposerName, int] = {
        "draft": sum(by_position(table, "k_histogram")[1:]) - ngram_rows - replay_rows,
        "ngram": 0 if replay_rows else ngram_rows,
    }
    draft, ngram = (by_source.get(name, AcceptanceCounts()) for name in ("draft", "ngram"))
    reached = (ngram_rows, *ngram.reached_per_position[1:])  # rows without a match accept none
    verified: dict[ProposerName, AcceptanceCounts] = {
        "draft": draft,
        "ngram": dataclasses.replace(ngram, reached_per_position=reached),
    }
    done, scored = total(table, "rows") - total(table, "failed_rows"), total(table, "scored_rows")
    generated = (done - scored) / done if done else 0.0
    return Evidence(
        verified={name: verified[name] for name, count in row_rounds.items() if count > 0},
        rows=done - scored,
        input_tokens=round(generated * total(table, "input_tokens")),
        output_tokens=total(table, "output_tokens"),
    )


def _subtract(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the difference by position; a missing position of `right` counts as 0."""
    return tuple(count - (right[i] if i < len(right) else 0) for i, count in enumerate(left))


def histogram(table: pa.Table, name: str) -> LogHistogram:
    """Returns the merged histograms of a column."""
    merged = LogHistogram()
    for at in range(0, table.num_rows, _WINDOW):
        merged.merge(_histogram(table[name].slice(at, _WINDOW)))
    return merged


def _histogram(column: pa.ChunkedArray) -> LogHistogram:
    """Returns the merged histograms of a column, with temporary arrays of several times its size."""
    counted = pc.greater(pc.list_value_length(pc.struct_field(column, "bucket")), 0)
    column = column.filter(counted)
    keys, place = np.unique(pc.list_flatten(pc.struct_field(column, "bucket")).to_numpy(), return_inverse=True)
    rows = np.zeros(len(keys), np.int64)
    np.add.at(rows, place, pc.list_flatten(pc.struct_field(column, "rows")).to_numpy())
    return LogHistogram.from_dict(
        {
            "bucket": keys.tolist(),
            "rows": rows.tolist(),
            "sum": pc.sum(pc.struct_field(column, "sum")).as_py() or 0.0,
            "min": pc.min(pc.struct_field(column, "min")).as_py() or 0.0,
            "max": pc.max(pc.struct_field(column, "max")).as_py() or 0.0,
        }
    )
