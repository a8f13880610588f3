"""What job files may hold: YAML's traps are undone here, before pydantic reads a value."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer


def default_of(vocabulary: type[Any], name: str) -> Any:
    """The default of a field of a core dataclass, so that it is written down once."""
    return next(f.default for f in dataclasses.fields(vocabulary) if f.name == name)


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):  # lax mode would read `slots: yes` as 1
        raise ValueError("not a number")
    return value


def _off_is_a_word(value: object) -> object:
    return "off" if value is False else value  # YAML 1.1 reads a bare off as false


def _one_is_a_list(value: object) -> object:
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


Int = Annotated[int, BeforeValidator(_not_a_bool)]
Number = Annotated[float, BeforeValidator(_not_a_bool)]
Count = Annotated[Int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
OffIsAWord = BeforeValidator(_off_is_a_word)
OneIsAList = BeforeValidator(_one_is_a_list)


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What a field takes, in words, where its type does not say so."""

    words: str


def _pairs(value: object) -> object:
    """A mapping as sorted pairs, which can be hashed."""
    if not isinstance(value, dict):
        return value
    if not all(isinstance(key, str) and isinstance(item, str | int | float | None) for key, item in value.items()):
        raise ValueError("not plain values")
    return tuple(sorted(value.items()))


Keywords = Annotated[
    tuple[tuple[str, str | int | float | bool | None], ...],
    BeforeValidator(_pairs),
    PlainSerializer(dict),
    Described("a mapping of names to text, numbers, true or false"),
]
"""Keyword arguments, as sorted pairs; a mapping in job files and in JSON."""
