"""A shard: the unit of dispatch, of publishing and of retry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A fixed range of rows of one input file."""

    index: int
    file: str
    start: int
    """First row of the range within the file, from 0."""
    stop: int
    """One past the last row."""
    first_row: int
    """Position of the first row in the whole dataset. Seeds derive from it."""
    samples: int = 1
    """Outputs of each input row."""
    continues: bool = False
    """The first row's prompt begins like that of the row before, which is the last one of the previous shard."""

    @property
    def input_rows(self) -> int:
        """Rows read from the file."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Output rows: `samples` for each input row."""
        return self.input_rows * self.samples
