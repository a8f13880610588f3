"""Example of a dataset format: ORC. Counts rows from the footer and reads a range stripe by stripe."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyarrow import orc

from specpipe.data.reading.table_formats import TableFormat, TableScan


def schema(source: Any) -> Any:
    """Returns the pyarrow.Schema of an open file."""
    return orc.ORCFile(source).schema


def scan(source: Any, prompt_columns: Sequence[str]) -> TableScan:
    """Returns the number of rows and the column names; reads the footer only."""
    file = orc.ORCFile(source)
    return TableScan(rows=file.nrows, columns=tuple(file.schema.names))


def batches(source: Any, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    """Yields (position of the first row, record batch) for rows [start, stop). Batches may hold rows outside of it."""
    file, first = orc.ORCFile(source), 0
    wanted = None if columns is None else [name for name in file.schema.names if name in columns]
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=wanted)
        if first < stop and first + batch.num_rows > start:
            yield first, batch
        first += batch.num_rows


ORC = TableFormat(schema=schema, scan=scan, batches=batches)
