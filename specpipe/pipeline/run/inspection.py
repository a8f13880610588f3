"""The state of a run as its folder shows it, while it is live and afterwards."""

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
    """The content of a run's folder."""

    folder: RunFolder
    manifest: Manifest
    shards: pa.Table
    """Rows of telemetry.shard_schema, one for each published part."""
    summary: dict[str, Any]
    """The summary, with `state` (complete, incomplete, running) and `holder` (the process that writes, or None)."""


def inspect_run(path: str) -> dict[str, Any]:
    """Returns the summary of a run's folder, with its `state` and `holder`; see RunView. Writes nothing.

    Uses summary.json of a complete run, and the parts of any other. Raises OutputError for a folder without a run.
    """
    folder = RunFolder.at(path)
    manifest = require_manifest(folder)
    holder = folder.lock().holder()
    last = read_summary(folder)
    if last.get("complete") and holder is None:
        return {"state": "complete", "holder": None, **last}
    return _view(folder, manifest, holder, last).summary


def view_run(path: str) -> RunView:
    """Returns everything that the folder shows, from its parts. Writes nothing.

    Raises OutputError for a folder without a run.
    """
    folder = RunFolder.at(path)
    manifest = require_manifest(folder)
    return _view(folder, manifest, folder.lock().holder(), read_summary(folder))


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
    """Returns the facts of each worker in the latest summary, without the figures that are counted from records."""
    counted = {"shards", "rows", "output_tokens", "busy_s", "tokens_per_s"}
    return {
        name: {key: value for key, value in worker.items() if key not in counted}
        for name, worker in last.get("workers", {}).items()
    }
