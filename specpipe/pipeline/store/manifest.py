"""manifest.json: what makes the outputs of a run, and how it was cut into shards."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specpipe.core import Shard
from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.errors import OutputError
from specpipe.job import default_identity
from specpipe.pipeline.store.folder import MANIFEST, RunFolder

FORMAT = "specpipe-run"
VERSION = 1
"""Goes up when a run of the version before cannot be resumed. A new field of the job needs that only where its default
is not what runs did before."""
_KEYS = {"identity", "tuning", "files", "samples", "shards", "synthetic", "created_at"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Identity and shards never change once written; tuning is that of the latest start."""

    identity: Mapping[str, Any]
    """By dotted name: the job's identity fields, the inputs as pinned, model revisions, the template's hash."""
    tuning: Mapping[str, Any]
    shards: tuple[Shard, ...]
    synthetic: bool
    created_at: str
    columns: tuple[str, ...] = OUTPUT_COLUMNS
    """Of every part, those to keep aside: a version with others cannot go on with a run."""

    @property
    def run_id(self) -> str:
        """16 hexadecimal digits of identity and shards: stands in every part's footer."""
        text = json.dumps([self.identity, _pack(self.shards)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "synthetic": self.synthetic,
            "columns": self.columns,
            "identity": self.identity,
            "tuning": self.tuning,
            **_pack(self.shards),
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _pack(shards: tuple[Shard, ...]) -> dict[str, Any]:
    """Shards as rows of numbers, with the files that they point to."""
    files = list(dict.fromkeys(shard.file for shard in shards))
    place = {file: i for i, file in enumerate(files)}
    rows = [[shard.index, place[shard.file], shard.start, shard.stop, shard.first_row] for shard in shards]
    samples = shards[0].samples if shards else 1
    columns = ["index", "file", "start", "stop", "first_row"]
    return {"files": files, "samples": samples, "shard_columns": columns, "shards": rows}


def _unpack(content: Mapping[str, Any]) -> tuple[Shard, ...]:
    files, samples = content["files"], content["samples"]
    return tuple(
        Shard(index=index, file=files[file], start=start, stop=stop, first_row=first_row, samples=samples)
        for index, file, start, stop, first_row in content["shards"]
    )


def new_manifest(
    identity: Mapping[str, Any], tuning: Mapping[str, Any], shards: tuple[Shard, ...], *, synthetic: bool
) -> Manifest:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Manifest(identity=identity, tuning=tuning, shards=shards, synthetic=synthetic, created_at=created)


def read_manifest(folder: RunFolder) -> Manifest | None:
    """The folder's manifest; None where there is none. Raises OutputError for one that is not ours or unreadable."""
    data = folder.read(MANIFEST)
    if data is None:
        return None
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise KeyError("format")
        if content["version"] != VERSION or (missing := sorted(_KEYS - content.keys())):
            found = f"manifest version {content['version']}, expected {VERSION}"
            lacks = f"it lacks {', '.join(missing)}" if content["version"] == VERSION else found
            raise OutputError(
                f"{folder.path} was written by another version of specpipe ({lacks}). Resume it with that version, or "
                "choose another output.path; nothing was changed"
            )
        return Manifest(
            identity=content["identity"],
            tuning=content["tuning"],
            shards=_unpack(content),
            synthetic=content["synthetic"],
            created_at=content["created_at"],
            columns=tuple(content.get("columns", OUTPUT_COLUMNS)),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise OutputError(
            f"{folder.file(MANIFEST)} is not the manifest of a specpipe run ({type(error).__name__}: {error}). If it "
            "was, delete it: the same job keeps parts that fit. Else choose another output.path; nothing was changed"
        ) from error


def require_manifest(folder: RunFolder) -> Manifest:
    """Returns the folder's manifest. Raises OutputError for a folder without one."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise OutputError(
            f"{folder.path} is not a specpipe run: it has no {MANIFEST}. Expected the output.path of a run"
        )
    return manifest


def check_resumable(manifest: Manifest, identity: Mapping[str, Any], folder: RunFolder) -> None:
    """Raises OutputError that names every field in which the run in the folder differs from this job.

    A field that the version which wrote the run did not know was at its default then.
    """
    lines = list(_differences({**default_identity(), **manifest.identity}, {**default_identity(), **identity}))
    if manifest.columns != OUTPUT_COLUMNS:
        lines.append(f"its parts have the columns {', '.join(manifest.columns)}; now: {', '.join(OUTPUT_COLUMNS)}")
    if lines:
        raise OutputError(
            f"{folder.path} holds a run of another job, which this one cannot resume:\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nRestore these, or choose another output.path; nothing was changed"
        )


def _differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*there, *now]):
        before, after = there.get(name), now.get(name)
        if before == after:
            continue
        if name == "inputs":
            yield from _input_differences(before or [], after or [])
        else:
            yield f"{name} was {_show(before)} and is {_show(after)}"


def _input_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    old = {pin["path"]: pin for pin in before}
    new = {pin["path"]: pin for pin in after}
    for path in [path for path in old if path not in new][:3]:
        yield f"input {path} is gone"
    for path in [path for path in new if path not in old][:3]:
        yield f"input {path} is new"
    for path in [path for path in old if path in new and old[path] != new[path]][:3]:
        changed = ", ".join(
            f"{key} {value} → {new[path].get(key)}" for key, value in old[path].items() if value != new[path].get(key)
        )
        yield f"input {path} has changed ({changed})"


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
