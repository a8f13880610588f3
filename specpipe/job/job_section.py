"""Base class of the sections of a job file."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, ConfigDict, model_validator


class JobSection(BaseModel):
    """Frozen model without extra keys. The docstring under each field is its reference text (docs/jobs.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, data: object) -> object:
        """Returns an empty mapping for None: YAML reads a section whose lines are all commented out as null."""
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        return {key: cls._none_as_null(key, value) for key, value in data.items()}

    @classmethod
    def _none_as_null(cls, key: object, value: object) -> object:
        """Returns None for the text `none` where the field is optional: YAML writes null differently."""
        field = cls.model_fields.get(str(key))
        optional = field is not None and type(None) in get_args(field.annotation)
        return None if optional and value in ("none", "None") else value
