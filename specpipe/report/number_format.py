"""Numbers and texts as a page shows them."""

from __future__ import annotations

DASH = "\N{EN DASH}"
"""Shown where there is no value."""


def count(value: float) -> str:
    """Returns a whole number with separators: 12,345."""
    return f"{value:,.0f}"


def decimal(value: float | None, digits: int = 2) -> str:
    """Returns a number with this many decimal places, or a dash for None and NaN."""
    return DASH if value is None or value != value else f"{value:,.{digits}f}"


def percent(share: float, digits: int = 0) -> str:
    """Returns a share as a percentage: 0.5 is 50%."""
    return f"{share:.{digits}%}"


def duration(seconds: float) -> str:
    """Returns a duration as 12.3 s, 3:07 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def clipped(text: str, limit: int) -> str:
    """Returns at most `limit` characters of the text; an ellipsis marks the cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def omitted_note(total: int, shown: int, noun: str) -> str:
    """Returns a note on the entries that a table leaves out; "" if it shows all of them."""
    return f"{total - shown:,} more {noun} are not shown." if total > shown else ""
