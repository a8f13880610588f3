"""Types of job fields. They undo YAML's surprises (`yes` as 1, `off` as false) before pydantic checks a value."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer

T = TypeVar("T")


def default_of(vocabulary: type[Any], name: str) -> Any:
    """Returns the default of a field of a core dataclass, so that each default stands in one place."""
    return next(f.default for f in dataclasses.fields(vocabulary) if f.name == name)


def _reject_bool(value: object) -> object:
    """Raises ValueError for a bool: pydantic's lax mode would read `slots: yes` as 1."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def _off_as_text(value: object) -> object:
    """Returns "off" for false: YAML 1.1 reads a bare `off` as false."""
    return "off" if value is False else value


def _wrap_single(value: object) -> object:
    """Returns a tuple for a single string or number where a list is expected."""
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


Int = Annotated[int, BeforeValidator(_reject_bool)]
Number = Annotated[float, BeforeValidator(_reject_bool)]
Count = Annotated[Int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
OffIsAWord = BeforeValidator(_off_as_text)
OneIsAList = BeforeValidator(_wrap_single)


@dataclasses.dataclass(frozen=True, slots=True)
class TuningMark:
    """Metadata of fields that may change between the starts of a run."""


Tuning = Annotated[T, TuningMark()]
"""Type of a tuning field: `slots: Tuning[Count]`. Every field without this mark is identity."""


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """Metadata that describes the accepted values, for types that do not describe themselves."""

    words: str


def _sorted_pairs(value: object) -> object:
    """Returns a mapping as sorted pairs, which are hashable. Raises ValueError for nested values."""
    if not isinstance(value, dict):
        return value
    if not all(isinstance(key, str) and isinstance(item, str | int | float | None) for key, item in value.items()):
        raise ValueError("not plain values")
    return tuple(sorted(value.items()))


Keywords = Annotated[
    tuple[tuple[str, str | int | float | bool | None], ...],
    BeforeValidator(_sorted_pairs),
    PlainSerializer(dict),
    Described("a mapping of names to text, numbers, true or false"),
]
"""Keyword arguments: sorted pairs in memory, a mapping in job files and in JSON."""
