"""A run from outside: what its folder says, while it is live and afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from specpipe.pipeline.run.versions import versions
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import Manifest, require_manifest
from specpipe.pipeline.store.results import build_summary, read_summary


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run's folder as it is now."""

    folder: RunFolder
    manifest: Manifest
    shards: pa.Table
    """Of telemetry.shard_schema: a row for each published part."""
    summary: dict[str, Any]
    """With `state` (complete, incomplete, running) and `holder`."""


def inspect_run(path: str) -> dict[str, Any]:
    """The summary of a run's folder with its `state` (complete, incomplete, running) and `holder`. Writes nothing.

    Raises OutputError for a folder that is no run's.
    """
    folder, manifest = _open(path)
    holder = folder.lock().holder()
    last = read_summary(folder)
    if last.get("complete") and holder is None:
        return {"state": "complete", "holder": None, **last}
    return _view(folder, manifest, holder, last).summary


def view_run(path: str) -> RunView:
    """Everything that the folder says, part by part. Writes nothing; raises OutputError where there is no run."""
    folder, manifest = _open(path)
    return _view(folder, manifest, folder.lock().holder(), read_summary(folder))


def _open(path: str) -> tuple[RunFolder, Manifest]:
    folder = RunFolder.at(path)
    manifest = require_manifest(folder)
    return folder, manifest


def _view(folder: RunFolder, manifest: Manifest, holder: str | None, last: dict[str, Any]) -> RunView:
    shards = read_ledger(folder, manifest.shards, manifest.run_id).table()
    summary = build_summary(
        folder,
        manifest,
        shards,
        failed_shards={int(shard): why for shard, why in last.get("failed_shards", {}).items()} if not holder else {},
        workers=_facts(last),
        versions=last.get("versions") or versions(),
    )
    state = "running" if holder else ("complete" if summary["complete"] else "incomplete")
    summary = {"state": state, "holder": holder, **summary}
    return RunView(folder=folder, manifest=manifest, shards=shards, summary=summary)


def _facts(last: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the latest summary knows about workers beside what the records say."""
    counted = {"shards", "rows", "output_tokens", "busy_s", "tokens_per_s"}
    return {
        name: {key: value for key, value in worker.items() if key not in counted}
        for name, worker in last.get("workers", {}).items()
    }
