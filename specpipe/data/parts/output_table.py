"""Output tables: the fixed schema, and completions as a table of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.core import Completion
from specpipe.data.columns import LOGPROB_COLUMNS, OUTPUT_COLUMNS
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
    "seed": pa.int64(),
    "sample": pa.int32(),
    "generated_logprobs": pa.list_(pa.float32()),
    "top_token_ids": pa.list_(pa.list_(pa.int32())),
    "top_token_logprobs": pa.list_(pa.list_(pa.float32())),
}
_CELLS = [name for name in OUTPUT_COLUMNS if name not in LOGPROB_COLUMNS]


def output_schema(kept: Any | None = None) -> Any:
    """Returns the pyarrow.Schema of every part of a run. Only log-probabilities and kept columns may be null.

    kept: the pyarrow.Schema of the kept columns, from column_checks.kept_schema.
    """
    fields = [pa.field(name, _TYPES[name], nullable=name in LOGPROB_COLUMNS) for name in OUTPUT_COLUMNS]
    return pa.schema([*fields, *(field.with_nullable(True) for field in kept or ())])


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
    columns |= logprob_columns([completion.logprobs for completion in ordered])
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
        request.seed,
        request.sample,
    )


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
    }
