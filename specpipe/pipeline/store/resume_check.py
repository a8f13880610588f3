"""Comparison of a job with the run in its output folder: a run resumes only where all identity fields are equal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specpipe.data.columns import ADDED_COLUMNS, OUTPUT_COLUMNS
from specpipe.errors import OutputError
from specpipe.job import default_identity
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import Manifest


def check_resumable(manifest: Manifest, identity: Mapping[str, Any], folder: RunFolder) -> None:
    """Raises OutputError that names every identity field in which the folder's run differs from this job.

    A field that the writing version did not have counts as its default.
    """
    lines = list(_differences({**default_identity(), **manifest.identity}, {**default_identity(), **identity}))
    known = tuple(name for name in OUTPUT_COLUMNS if name in manifest.columns or name not in ADDED_COLUMNS)
    if manifest.columns != known:
        lines.append(f"columns were {', '.join(manifest.columns)} and are {', '.join(OUTPUT_COLUMNS)}")
    if lines:
        raise OutputError(
            f"{folder.path} holds the run of another job, which this job cannot resume:\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nRestore these values, or choose another output.path; nothing was changed"
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line for each field that differs, and for each changed input."""
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name == "inputs":
            yield from _input_differences(before or [], after or [])
        else:
            yield f"{name} was {_show(before)} and is {_show(after)}"


def _input_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    """Yields at most three removed, three new and three changed inputs."""
    old = {pin["path"]: pin for pin in before}
    new = {pin["path"]: pin for pin in after}
    for path in [path for path in old if path not in new][:3]:
        yield f"input {path} was removed"
    for path in [path for path in new if path not in old][:3]:
        yield f"input {path} is new"
    for path in [path for path in old if path in new and old[path] != new[path]][:3]:
        changed = ", ".join(
            f"{key} {value} → {new[path].get(key)}" for key, value in old[path].items() if value != new[path].get(key)
        )
        yield f"input {path} has changed ({changed})"


def _show(value: object) -> str:
    """Returns a value as JSON, at most 80 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
