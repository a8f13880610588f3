"""A dataset format: ORC. Rows are counted from the footer, and a range is read stripe by stripe, in flat memory."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyarrow import orc

from specpipe.data.reading.table_formats import TableFormat, TableScan


def schema(source: Any) -> Any:
    """source: an open file. → its pyarrow.Schema."""
    return orc.ORCFile(source).schema


def scan(source: Any, prompt_columns: Sequence[str]) -> TableScan:
    """What planning needs; no row is read."""
    file = orc.ORCFile(source)
    return TableScan(rows=file.nrows, columns=tuple(file.schema.names))


def batches(source: Any, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    """Record batches that hold rows [start, stop), each with the position of its first row; more rows do no harm."""
    file, first = orc.ORCFile(source), 0
    wanted = None if columns is None else [name for name in file.schema.names if name in columns]
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=wanted)
        if first < stop and first + batch.num_rows > start:
            yield first, batch
        first += batch.num_rows


ORC = TableFormat(schema=schema, scan=scan, batches=batches)
