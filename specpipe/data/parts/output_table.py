"""Output tables: the fixed schema, and completions as a table of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specpipe.core import Completion, Score
from specpipe.data.columns import (
    ACCEPTED_PER_ROUND,
    ADDED_COLUMNS,
    LOGPROB_COLUMNS,
    OUTPUT_COLUMNS,
    SCORE_COLUMNS,
)
from specpipe.data.parts.logprob_columns import logprob_columns
from specpipe.data.reading.dataset_rows import utf8

_TYPES = {
    "request_id": pa.string(),
    "prompt": pa.string(),
    "generated_text": pa.string(),
    "generated_token_ids": pa.list_(pa.int32()),
    "num_input_tokens": pa.int64(),
    "num_generated_tokens": pa.int64(),
    "finish_reason": pa.string(),
    "error": pa.string(),
    "cached_tokens": pa.int64(),
    "draft_tokens": pa.int64(),
    "accepted_tokens": pa.int64(),
    "followed_tokens": pa.int64(),
    ACCEPTED_PER_ROUND: pa.list_(pa.uint8()),
    "seed": pa.int64(),
    "sample": pa.int32(),
    "generated_logprobs": pa.list_(pa.float32()),
    "top_token_ids": pa.list_(pa.list_(pa.int32())),
    "top_token_logprobs": pa.list_(pa.list_(pa.float32())),
    "scores": pa.list_(
        pa.struct(
            [
                pa.field("logprob", pa.float64(), nullable=False),
                pa.field("num_tokens", pa.int32(), nullable=False),
                pa.field("is_greedy", pa.bool_(), nullable=False),
            ]
        )
    ),
    "score_logprobs": pa.list_(pa.list_(pa.float32())),
}
_NULLABLE = (ACCEPTED_PER_ROUND, *LOGPROB_COLUMNS, *SCORE_COLUMNS)
_CELLS = [name for name in OUTPUT_COLUMNS if name not in _NULLABLE]


def output_schema(kept: Any | None = None) -> Any:
    """Returns the pyarrow.Schema of every part of a run. Only those of _NULLABLE and kept columns may be null.

    kept: the pyarrow.Schema of the kept columns, from column_checks.kept_schema.
    """
    fields = [pa.field(name, _TYPES[name], nullable=name in _NULLABLE) for name in OUTPUT_COLUMNS]
    return pa.schema([*fields, *(field.with_nullable(True) for field in kept or ())])


def with_added_columns(table: Any) -> Any:
    """Returns a part's pyarrow.Table with zeros or nulls in the output columns that its version did not have."""
    for name in ADDED_COLUMNS:
        if name not in table.schema.names and OUTPUT_COLUMNS[0] in table.schema.names:
            nullable = name in _NULLABLE
            values = pa.repeat(pa.scalar(None if nullable else 0, _TYPES[name]), table.num_rows)
            at = min(OUTPUT_COLUMNS.index(name), table.num_columns)
            table = table.add_column(at, pa.field(name, _TYPES[name], nullable=nullable), values)
    return table


def to_table(completions: Sequence[Completion], rows: int, kept: Any | None = None) -> Any:
    """Returns the outputs of a shard as a pyarrow.Table in input order.

    rows: output rows of the shard. kept: kept columns of the same rows, from dataset_rows.read_kept_columns.
    Raises ValueError unless each row from 0 to `rows` - 1 has exactly one completion.
    """
    ordered = sorted(completions, key=lambda completion: completion.request.row)
    if [completion.request.row for completion in ordered] != list(range(rows)):
        raise ValueError(f"{len(ordered)} completions for {rows} rows: rows are missing or duplicated")
    cells = [_cells(completion) for completion in ordered]
    columns: dict[str, Any] = {name: [row[i] for row in cells] for i, name in enumerate(_CELLS)}
    columns = {name: pa.array(values, _TYPES[name]) for name, values in columns.items()}
    rounds = [completion.accepted_per_round for completion in ordered]
    columns[ACCEPTED_PER_ROUND] = pa.array(
        [None if found is None else np.frombuffer(found, np.uint8) for found in rounds], _TYPES[ACCEPTED_PER_ROUND]
    )
    columns |= logprob_columns([completion.logprobs for completion in ordered])
    columns["scores"] = pa.array([_score_cells(completion.scores) for completion in ordered], _TYPES["scores"])
    logprobs = [_score_logprobs(completion.scores) for completion in ordered]
    columns["score_logprobs"] = pa.array(logprobs, _TYPES["score_logprobs"])
    if kept is not None:
        columns |= {name: kept[name] for name in kept.column_names}
    return pa.table(columns, schema=output_schema(None if kept is None else kept.schema))


def _cells(completion: Completion) -> tuple[object, ...]:
    request = completion.request
    return (
        request.request_id,
        request.prompt,
        utf8(completion.text),
        completion.token_ids,
        len(request.prompt_token_ids),
        len(completion.token_ids),
        completion.finish_reason,
        utf8(completion.error),
        completion.cached_tokens,
        completion.draft_tokens,
        completion.accepted_tokens,
        completion.followed_tokens,
        request.seed,
        request.sample,
    )


def _score_cells(scores: Sequence[Score]) -> list[dict[str, float]] | None:
    cells = [
        {"logprob": score.logprob, "num_tokens": score.num_tokens, "is_greedy": score.is_greedy} for score in scores
    ]
    return cells or None


def _score_logprobs(scores: Sequence[Score]) -> list[NDArray[np.float32]] | None:
    """Returns the log-probabilities of the tokens of each score; None where the row does not request them."""
    return [np.asarray(s.token_logprobs, np.float32) for s in scores if s.token_logprobs is not None] or None


def output_totals(table: Any) -> dict[str, int]:
    """Returns totals over the rows of an output table, under the names that telemetry uses."""

    def total(column: Any) -> int:
        return int(pc.sum(column).as_py() or 0)

    return {
        "rows": table.num_rows,
        "failed_rows": total(pc.not_equal(table["error"], "")),
        "input_tokens": total(table["num_input_tokens"]),
        "cached_tokens": total(table["cached_tokens"]),
        "output_tokens": total(table["num_generated_tokens"]),
        "scored_rows": total(pc.equal(table["finish_reason"], "scored")),
        "scored_tokens": total(pc.struct_field(pc.list_flatten(table["scores"]), "num_tokens")),
    }
