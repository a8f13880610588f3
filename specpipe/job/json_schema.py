"""JSON schema of job files, by which editors complete and check keys."""

from __future__ import annotations

import json
from typing import Any

from specpipe.job.job_spec import JobSpec


def json_schema() -> str:
    """Returns the schema as JSON text. `eval` and other keys of further commands are left to those commands."""
    schema: dict[str, Any] = JobSpec.model_json_schema()
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "specpipe job"}
    return json.dumps(_repaired(schema), indent=1, ensure_ascii=False)


def _repaired(value: Any) -> Any:
    """Returns a schema with standard names of limits, which pydantic leaves out behind validators of its own."""
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    is_type = isinstance(value.get("type"), str)
    return {names.get(key, key) if is_type else key: _repaired(item) for key, item in value.items()}
