"""Base class of the sections of a job file."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, ConfigDict, model_validator


class JobSection(BaseModel):
    """Base of the job's sections: frozen, unknown keys are errors, and docstrings under fields are their reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_means_default(cls, data: object) -> object:
        if data is None:  # a section whose every line is commented out
            return {}
        if not isinstance(data, dict):
            return data
        return {key: cls._none_is_null(key, value) for key, value in data.items()}

    @classmethod
    def _none_is_null(cls, key: object, value: object) -> object:
        """YAML reads `none` as text; where a key may be left out, that is what it means."""
        field = cls.model_fields.get(str(key))
        optional = field is not None and type(None) in get_args(field.annotation)
        return None if optional and value in ("none", "None") else value
