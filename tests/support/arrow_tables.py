"""Input files by file extension, and hypothesis strategies for tables with columns of any type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st


def write_table(path: Path, table: Any) -> None:
    """Writes a table as Parquet (.parquet), otherwise as an Arrow file."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def broken_text(values: Sequence[bytes | None]) -> Any:
    """Returns a string column with these bytes, valid UTF-8 or not."""
    binary = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:], binary.buffers()[0])


def _of(kind: Any, values: Any) -> Any:
    """Returns a function from a length to a strategy for columns of an Arrow type; `kind` None: broken text."""

    def column(rows: int) -> Any:
        cells = st.lists(values | st.none(), min_size=rows, max_size=rows)
        return cells.map(lambda drawn: broken_text(drawn) if kind is None else _array(drawn, kind))

    return column


def _array(values: Sequence[object], kind: Any) -> Any:
    """Returns an array; for temporal types from integers, as Python's types do not cover their range."""
    bits = pa.types.is_temporal(kind) and not pa.types.is_interval(kind) and kind.bit_width
    return pa.array(values, {32: pa.int32(), 64: pa.int64()}[bits]).view(kind) if bits else pa.array(values, kind)


def _integers(bits: int, *, signed: bool = True) -> Any:
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1) | st.integers(0, 100)


def any_tables(names: Sequence[str], texts: Any) -> Any:
    """Returns a strategy for tables of one to four rows with up to four columns of these names and any type."""
    chat_turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    roles = st.sampled_from(["user", "assistant", "system", "narrator", ""])
    turns = st.lists(st.fixed_dictionaries({"role": roles | st.none(), "content": texts | st.none()}), max_size=3)
    body = pa.struct([("messages", pa.list_(chat_turn)), ("temperature", pa.float64())])
    columns = st.sampled_from(
        [
            *(_of(getattr(pa, f"int{bits}")(), _integers(bits)) for bits in (8, 32, 64)),
            _of(pa.uint64(), _integers(64, signed=False)),
            *(_of(kind, st.floats(width=kind.bit_width)) for kind in (pa.float16(), pa.float32(), pa.float64())),
            *(_of(kind, texts) for kind in (pa.string(), pa.large_string(), pa.string_view())),
            _of(pa.dictionary(pa.int32(), pa.string()), texts),
            _of(pa.map_(pa.string(), pa.string()), st.lists(st.tuples(texts, texts), max_size=2)),
            _of(None, st.binary(max_size=5)),
            _of(pa.binary(), st.binary(max_size=6)),
            _of(pa.binary(3), st.binary(min_size=3, max_size=3)),
            _of(pa.bool_(), st.booleans()),
            _of(pa.null(), st.none()),
            _of(pa.date32(), _integers(32)),
            *(_of(kind, _integers(64)) for kind in (pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.duration("s"))),
            _of(pa.timestamp("us", "Nowhere/Land"), _integers(64)),
            _of(pa.month_day_nano_interval(), st.tuples(_integers(16), _integers(16), _integers(32))),
            _of(pa.decimal128(38, 3), st.decimals(-(10**30), 10**30, places=3)),
            *(_of(pa.list_(kind), st.lists(_integers(10), max_size=4)) for kind in (pa.int32(), pa.int64())),
            _of(pa.list_(pa.float64()), st.lists(st.floats(), max_size=3)),
            _of(pa.list_(pa.string()), st.lists(texts | st.none(), max_size=3)),
            *(_of(kind, turns) for kind in (pa.list_(chat_turn), pa.large_list(chat_turn))),
            _of(body, st.fixed_dictionaries({"messages": turns, "temperature": st.floats()})),
        ]
    )

    def of_length(rows: int) -> Any:
        one = columns.flatmap(lambda column: column(rows))
        return st.dictionaries(st.sampled_from(names), one, min_size=1, max_size=4).map(pa.table)

    return st.integers(1, 4).flatmap(of_length)
