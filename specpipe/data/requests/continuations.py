"""Continuations of score rows: texts, or lists of token ids, whose log-probabilities after the prompt are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specpipe.data.columns import CONTINUATIONS, PROMPT_COLUMNS
from specpipe.errors import InputError

Continuations = tuple[str, ...] | tuple[tuple[int, ...], ...]


def find_continuations(values: Mapping[str, object]) -> Continuations | None:
    """Returns the continuations of a row; None for a row without them, which generates. Raises InputError."""
    value = values.get(CONTINUATIONS)
    if value is None:
        return None
    expected = "expected a list of texts, or of lists of token ids"
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise InputError(f"column {CONTINUATIONS}: {value!r:.60}; {expected}, at least one")
    kind = _is_text if isinstance(value[0], str) else _is_ids
    for i, item in enumerate(value):
        if not kind(item):
            raise InputError(f"column {CONTINUATIONS}[{i}]: {item!r:.60}; {expected}, none of them empty")
    return tuple(value) if kind is _is_text else tuple(tuple(item) for item in value)


def has_prompt(values: Mapping[str, object], column: str | None) -> bool:
    """Returns False for a row whose prompt is missing or the empty text. column: data.prompt."""
    return any(values.get(name) not in (None, "") for name in ((column,) if column else PROMPT_COLUMNS))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_ids(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    return all(isinstance(token, int) and not isinstance(token, bool) for token in value)
