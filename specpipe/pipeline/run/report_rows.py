"""Rows of a run for its report: failed ones, some answers with their accepted drafts, and figures over many rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specpipe.data.columns import ACCEPTED_PER_ROUND
from specpipe.data.locations import locate
from specpipe.data.parts.output_table import with_added_columns
from specpipe.models.detokenizer import Detokenizer
from specpipe.models.source import cached_file
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import Manifest

if TYPE_CHECKING:
    from specpipe.report import AnswerExample, ErrorExample, RowFigures
    from specpipe.report.elements import Marked

log = logging.getLogger(__name__)
_MAX_PARTS, _MAX_EXAMPLES = 4, 12  # parts read for examples, and examples shown
_MAX_COUNTED_PARTS = 64  # parts read for figures: a second on a local disk
_MAX_CHARACTERS = 1000  # of an answer whose accepted tokens are marked
_MAX_VALUES = 100  # a kept column with more values is no category
_SUMS = ("draft_tokens", "accepted_tokens", "num_generated_tokens")
_GROUP_FIELDS = ["value", "rows", "draft_tokens", "accepted_tokens", "output_tokens"]


def failed_rows(folder: RunFolder, shards: Sequence[int]) -> list[ErrorExample]:
    """Returns failed rows of the first parts that have some."""
    from specpipe.report import ErrorExample

    found: list[ErrorExample] = []
    for table in _parts(folder, sorted(shards)[:_MAX_PARTS], ["request_id", "error", "prompt"]):
        failed = table.filter(pc.not_equal(table["error"], "")).slice(0, _MAX_EXAMPLES - len(found))
        found += [ErrorExample(**row) for row in failed.to_pylist()]
    return found


def answers(folder: RunFolder, manifest: Manifest, shards: Sequence[int]) -> list[AnswerExample]:
    """Returns rows of the first and last parts by acceptance: the least and the most accepted, and some between."""
    from specpipe.report import AnswerExample

    numbers = sorted(shards)
    parts = dict.fromkeys([*numbers[: _MAX_PARTS // 2], *numbers[-_MAX_PARTS // 2 :]])
    columns = ["request_id", "prompt", "generated_text", "generated_token_ids", "finish_reason"]
    columns += ["draft_tokens", "accepted_tokens", ACCEPTED_PER_ROUND]
    rows = [row for table in _parts(folder, list(parts), columns) for row in _generated(table).to_pylist()]
    rows.sort(key=lambda row: row["accepted_tokens"] / max(1, row["draft_tokens"]))
    if len(rows) > _MAX_EXAMPLES:
        third, middle = _MAX_EXAMPLES // 3, len(rows) // 2
        rows = [*rows[:third], *rows[middle : middle + third], *rows[-third:]]
    tokenizer = _tokenizer(manifest) if any(row[ACCEPTED_PER_ROUND] for row in rows) else None
    return [
        AnswerExample(
            request_id=row["request_id"],
            prompt=row["prompt"],
            answer=mark_accepted(
                tokenizer, row["generated_text"], row["generated_token_ids"], row[ACCEPTED_PER_ROUND] or ()
            ),
            draft_tokens=row["draft_tokens"],
            accepted_tokens=row["accepted_tokens"],
        )
        for row in rows
    ]


def mark_accepted(tokenizer: Any, text: str, token_ids: Sequence[int], accepted_per_round: Sequence[int]) -> Marked:
    """Splits an answer into pieces, each with whether its tokens were accepted drafts.

    tokenizer: its `decode` gives the text of ids; None leaves the text unmarked.
    """
    accepted = [flag for count in accepted_per_round for flag in (*[True] * count, False)]
    pieces: list[tuple[str, bool]] = []
    at, decoder = 0, Detokenizer(tokenizer)
    for token, flag in zip(token_ids, accepted, strict=False):  # the last round may end before its own token
        if tokenizer is None or at >= min(len(text), _MAX_CHARACTERS):
            break
        decoder.push(token)
        pieces.append((text[at : len(decoder.text)], flag))
        at = max(at, len(decoder.text))
    pieces.append((text[at:], False))
    filled = (piece for piece in pieces if piece[0])
    return [("".join(part for part, _ in same), flag) for flag, same in groupby(filled, key=lambda piece: piece[1])]


def _tokenizer(manifest: Manifest) -> Any | None:
    """Returns the target's tokenizer if this machine has it, without an import of transformers."""
    from tokenizers import Tokenizer

    identity = manifest.identity
    try:
        path = cached_file(str(identity["model.target"]), "tokenizer.json", str(identity.get("model.target_revision")))
        return None if path is None else Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no other type for files that it cannot read
        log.warning("the report marks no accepted tokens: the tokenizer cannot be read: %s", error)
        return None


def row_figures(folder: RunFolder, manifest: Manifest, shards: Sequence[int]) -> RowFigures:
    """Returns lengths and acceptance of the generated rows of at most 64 parts, spread over the run."""
    from specpipe.report import RowFigures, RowGroup

    numbers = sorted(shards)
    chosen = numbers[:: max(1, -(-len(numbers) // _MAX_COUNTED_PARTS))]
    prompt, output = Counter[int](), Counter[int]()
    by_column: dict[str, list[pa.Table]] = {name: [] for name in manifest.identity.get("output.keep_columns") or ()}
    parts = rows = 0
    for shard in chosen:
        for table in _parts(folder, [shard], ["finish_reason", "num_input_tokens", *_SUMS, *by_column]):
            generated = _generated(table)
            parts, rows = parts + 1, rows + generated.num_rows
            prompt += _powers(generated["num_input_tokens"])
            output += _powers(generated["num_generated_tokens"])
            merged = {name: _merged([*found, _by_value(generated, name)]) for name, found in by_column.items()}
            by_column = {name: [table] for name, table in merged.items() if table is not None}
    return RowFigures(
        parts=parts,
        rows=rows,
        prompt_tokens=prompt,
        output_tokens=output,
        by_column={
            name: [RowGroup(**group) for group in found[0].to_pylist()] for name, found in by_column.items() if found
        },
    )


def _powers(lengths: Any) -> Counter[int]:
    """Returns the number of lengths by the smallest power of 2 that is not below."""
    return Counter((max(1, length) - 1).bit_length() for length in lengths.to_pylist())


def _by_value(table: pa.Table, name: str) -> pa.Table | None:
    """Returns the fields of `RowGroup` by the values of a kept column; None where its type is no category's."""
    kind = table.schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    ones = pa.repeat(1, table.num_rows)
    table = pa.table([table[name].cast(pa.string()), ones, *(table[field] for field in _SUMS)], names=_GROUP_FIELDS)
    return table.filter(pc.is_valid(table["value"]))


def _merged(tables: Sequence[pa.Table | None]) -> pa.Table | None:
    """Returns the sums over tables of `_by_value`; None for a column that is no category."""
    found = [table for table in tables if table is not None]
    if not found or len(found) < len(tables):
        return None
    value, *sums = _GROUP_FIELDS
    table = pa.concat_tables(found).group_by(value).aggregate([(field, "sum") for field in sums])
    names = {f"{field}_sum": field for field in sums}
    table = table.rename_columns([names.get(name, name) for name in table.column_names]).select(_GROUP_FIELDS)
    return None if table.num_rows > _MAX_VALUES else table


def _generated(table: pa.Table) -> pa.Table:
    reasons = pa.array(["stop", "length"])  # not a constant of the module: it imports pandas
    return table.filter(pc.is_in(table["finish_reason"], reasons))


def _parts(folder: RunFolder, shards: Sequence[int], columns: list[str]) -> Iterator[pa.Table]:
    """Yields columns of published parts; skips those that cannot be read."""
    for shard in shards:
        location = locate(folder.file(folder.part_name(shard)))
        try:
            with location.filesystem.open_input_file(location.path) as source:
                file = pq.ParquetFile(source)
                table = file.read([name for name in columns if name in file.schema_arrow.names])
        except (OSError, pa.ArrowException) as error:
            log.warning("the rows of %s could not be read: %s", location.text(), error)
            continue
        filled = with_added_columns(table)
        yield filled.select([name for name in columns if name in filled.schema.names])
