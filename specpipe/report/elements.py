"""Elements of a page before it is HTML: sections of facts, figures and tables, all of them plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specpipe.report.number_format import DASH

_NUMBER = re.compile(rf"[-+±]?[\d,.:]+ ?(%|s|ms)?$|{DASH}?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells as they are shown. Columns of numbers are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    note: str = ""
    """Text below the table, such as the number of rows left out."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """By column: True if every cell is a number."""
        return tuple(all(_NUMBER.match(row[i]) for row in self.rows) for i in range(len(self.head)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A plot and the same values as a table."""

    title: str
    alt: str
    """The plot in one sentence, for screen readers."""
    svg: str
    """Markup made by `plots`; "" if drawing failed."""
    table: Table


Marked = Sequence[tuple[str, bool]]
"""Pieces of a text, each with whether it is highlighted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two texts side by side below their title, collapsed unless `is_open`."""

    title: str
    left: Marked
    right: Marked
    above: str = ""
    """The prompt of both texts."""
    note: str = ""
    anchor: str = ""
    """Id in the page, for links; "" for none."""
    is_open: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSection:
    """A heading and the elements below it."""

    title: str
    intro: str = ""
    facts: Sequence[tuple[str, str]] = ()
    """Pairs of name and value."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()
    """Tables that are collapsed."""
    pairs: Sequence[Pair] = ()
    links: Sequence[tuple[str, str]] = ()
    """Pairs of anchor and text: links to other places of the page."""
    note: str = ""
    """Text at the end of the section."""

    @property
    def anchor(self) -> str:
        """Id of the heading in the page."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")
