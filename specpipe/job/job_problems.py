"""Messages for the validation errors of a job: the key, its value, and the expected values."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specpipe.job.field_types import Described

_PLAIN = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}
_RENAMED = {"model.draft_dtype": "model.quantize_draft (none or fp8)"}
_BOUNDS = ((Ge, "ge", ">= {}"), (Gt, "gt", "> {}"), (Le, "le", "<= {}"), (Lt, "lt", "< {}"))


class JobProblem(NamedTuple):
    """One error of a job file."""

    keys: tuple[str, ...]
    """Path of keys, such as ("speculation", "policy")."""
    text: str


def describe(annotation: Any, metadata: Sequence[object] = ()) -> str:
    """Returns the values that a field accepts, such as "an integer (>= 1)"."""
    if words := [part.words for part in metadata if isinstance(part, Described)]:
        return words[0]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe(args[0], args[1:])
    if origin is Literal:
        return _either([str(arg) for arg in args])
    if origin in (Union, types.UnionType):
        return _either([describe(arg) for arg in args])
    if origin is tuple:
        return f"a list of: {describe(args[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        needed = [name for name, field in annotation.model_fields.items() if field.is_required()]
        return f"a section with {_either(needed)}" if needed else "a section with keys and values"
    bounds = ", ".join(_bounds(metadata))
    return f"{_PLAIN[annotation]} ({bounds})" if bounds else _PLAIN[annotation]


def _bounds(metadata: Sequence[object]) -> list[str]:
    """Returns the limits of a number; 63-bit limits are left out."""
    flat = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    return [
        text.format(getattr(part, name))
        for kind, name, text in _BOUNDS
        for part in flat
        if isinstance(part, kind) and getattr(part, name) < 2**62
    ]


def _either(parts: Sequence[str]) -> str:
    """Returns "a, b or c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def job_problems(error: ValidationError, root: type[BaseModel], given: object) -> list[JobProblem]:
    """Returns every problem of a job once, in the order of `root`'s sections. `given`: the values before validation."""
    found: dict[JobProblem, None] = {}
    for detail in error.errors(include_url=False, include_input=False):
        for problem in _problems(detail, root, given):
            found.setdefault(problem)
    return list(found)


def _problems(detail: Any, root: type[BaseModel], given: object) -> list[JobProblem]:
    """Returns the problems of one pydantic error (`ErrorDetails`)."""
    keys = _keys_of(detail["loc"], root)
    field = _field(keys, root)
    if detail["type"] == "extra_forbidden" and field is None:
        return [JobProblem(keys, f"{'.'.join(keys)} is not a key of a job file{_did_you_mean(keys, root)}")]
    if detail["type"] == "value_error" and (field is None or _is_section(field)):
        # Texts of a section's own checks begin with ".key"; checks across sections name the whole path.
        lines = str(detail["ctx"]["error"]).split("\n")
        return [JobProblem((*keys, *_leading_key(line)), f"{'.'.join(keys)}{line}") for line in lines]
    if field is None:
        return [JobProblem(keys, f"the file holds {_show(given)}; expected sections such as model, data and output")]
    expected = describe(field.annotation, field.metadata)
    if detail["type"] == "missing" and len(detail["loc"]) == len(keys):
        return [JobProblem(keys[:-1], f"{'.'.join(keys)} is missing; expected {expected}")]
    value = _lookup(given, keys)
    quote = "; put it in quotes" if "text" in expected and not isinstance(value, str | list | dict | None) else ""
    return [JobProblem(keys, f"{'.'.join(keys)} is {_show(value)}; expected {expected}{quote}")]


def _keys_of(loc: Sequence[int | str], root: type[BaseModel]) -> tuple[str, ...]:
    """Returns the keys of the job file in a pydantic location, without union branches and list indices."""
    first = root.model_fields.get(str(loc[0])) if loc else None
    return tuple(str(part) for part in loc[: 2 if first is not None and _is_section(first) else 1])


def _field(keys: Sequence[str], root: type[BaseModel]) -> FieldInfo | None:
    """Returns the field at this path; None where there is none."""
    field: FieldInfo | None = None
    for key in keys:
        model = root if field is None else field.annotation
        field = model.model_fields.get(key) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return None
    return field


def _is_section(field: FieldInfo) -> bool:
    """Returns whether the field's type is a section of its own."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _leading_key(line: str) -> tuple[str, ...]:
    """Returns the keys with which a message begins."""
    head = line.split(" ", 1)[0]
    return tuple(part for part in head.split(".") if part)


def _did_you_mean(keys: tuple[str, ...], root: type[BaseModel]) -> str:
    """Returns a similar key of the same section, the same key of another section, or the section's keys."""
    if new := _RENAMED.get(".".join(keys)):
        return f"; it is {new} now"
    places = [name for name, field in root.model_fields.items() if not _is_section(field)]
    sections = {name: field for name, field in root.model_fields.items() if _is_section(field)}
    places += [*sections, *(f"{name}.{key}" for name, field in sections.items() for key in _section_keys(field))]
    wanted = keys[-1]
    near = [place for place in places if place.rpartition(".")[0] == ".".join(keys[:-1])]
    names = {place.rpartition(".")[2]: place for place in near}
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {names[close[0]]}?"
    elsewhere = [place for place in places if place.rpartition(".")[2] == wanted]
    return f"; did you mean {elsewhere[0]}?" if elsewhere else f"; expected one of {', '.join(names)}"


def _section_keys(field: FieldInfo) -> list[str]:
    """Returns the keys of a section; empty for any other field."""
    model = field.annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _lookup(given: object, keys: Sequence[str]) -> object:
    """Returns the value at this path; None where there is none."""
    for key in keys:
        given = given.get(key) if isinstance(given, dict) else None
    return given


def _show(value: object) -> str:
    """Returns a value as JSON, at most 60 characters."""
    if value is None:
        return "empty"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
