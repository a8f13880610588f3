"""What a start leaves when it ends, however it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specpipe.pipeline.driver.config import DriverResult
from specpipe.pipeline.run.opened import OpenedRun
from specpipe.pipeline.run.report_page import write_report
from specpipe.pipeline.run.versions import versions
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import Manifest
from specpipe.pipeline.store.results import build_summary, has_results, publish_results

Ended = Literal["already complete", "interrupted", "failed"]


def leave(opened: OpenedRun, manifest: Manifest, outcome: DriverResult, state: Ended | None) -> Mapping[str, Any]:
    """Telemetry, summary and report of all parts that are there. → the summary"""
    # Two workers ran a contested shard: whose part is there?
    contested = [manifest.shards[shard] for shard in sorted(outcome.contested)]
    opened.done.extend(read_ledger(opened.folder, contested, manifest.run_id).table())
    shards = opened.done.table()
    summary = build_summary(
        opened.folder,
        manifest,
        shards,
        failed_shards=outcome.failed,
        workers={name: info.facts for name, info in outcome.workers.items()},
        versions=versions(),
    )
    if state != "already complete" or not has_results(opened.folder, shards.num_rows):
        publish_results(opened.folder, shards, summary)
        shown = state if state in ("interrupted", "failed") else "complete" if summary["complete"] else "incomplete"
        write_report(opened.folder, manifest, shards, summary, shown)
    return summary
