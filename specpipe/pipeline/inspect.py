"""A run from outside: what its folder says, while it is live and afterwards."""

from __future__ import annotations

import json
from typing import Any

from specpipe.errors import OutputError
from specpipe.pipeline.assemble import versions
from specpipe.pipeline.folder import SUMMARY, RunFolder
from specpipe.pipeline.ledger import read_ledger
from specpipe.pipeline.manifest import read_manifest
from specpipe.pipeline.results import build_summary


def inspect(path: str) -> dict[str, Any]:
    """The summary of a run's folder with its `state` (complete, incomplete, running) and `holder`. Writes nothing.

    Raises OutputError for a folder that is no run's.
    """
    folder = RunFolder.at(path)
    manifest = read_manifest(folder)
    if manifest is None:
        raise OutputError(f"{folder.path} is no specpipe run: it has no manifest.json")
    holder = folder.lock().holder()
    data = folder.read(SUMMARY)
    last: dict[str, Any] = json.loads(data) if data is not None else {}
    if last.get("complete") and holder is None:
        return {"state": "complete", "holder": None, **last}
    summary = build_summary(
        folder,
        manifest,
        read_ledger(folder, manifest.shards, manifest.run_id).table(),
        failed_shards={int(shard): why for shard, why in last.get("failed_shards", {}).items()} if not holder else {},
        workers={},
        versions=last.get("versions") or versions(),
    )
    state = "running" if holder else ("complete" if summary["complete"] else "incomplete")
    return {"state": state, "holder": holder, **summary}
