"""What a page is made of, before it is HTML: sections of facts, figures and tables, all of it plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

DASH = "\N{EN DASH}"
"""Stands where there is no value."""
_NUMBER = re.compile(rf"[-+±]?[\d,.:]+ ?(%|s|ms)?$|{DASH}?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells as they are shown. Columns that hold numbers alone are set flush right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    note: str = ""
    """Said under it, such as how many rows were left out."""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """By column: whether every cell is a number."""
        return tuple(all(_NUMBER.match(row[i]) for row in self.rows) for i in range(len(self.head)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A plot and the same as a table. `svg` is markup of our own making; "" where it could not be drawn."""

    title: str
    alt: str
    """The plot in a sentence, for those who do not see it."""
    svg: str
    table: Table


Marked = Sequence[tuple[str, bool]]
"""A text in pieces, each with whether it stands out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two texts beside each other, folded up behind their title."""

    title: str
    left: Marked
    right: Marked
    above: str = ""
    """What both answer."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSection:
    """One heading and what stands under it."""

    title: str
    intro: str = ""
    facts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()
    """Tables that are folded up."""
    pairs: Sequence[Pair] = ()
    note: str = ""
    """Said at its end."""

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def count(value: float) -> str:
    return f"{value:,.0f}"


def fixed(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return DASH if value is None or value != value else f"{value:,.{digits}f}"


def percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}"


def seconds(value: float) -> str:
    """12.3 s, 3:07 or 1:02:03."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def clipped(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
