"""Results of a run beside its parts: telemetry/shards.parquet, telemetry/costs.json, summary.json, exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.errors import EXIT_COMPLETE, EXIT_FAILED, EXIT_INCOMPLETE, EXIT_INTERRUPTED, SpecpipeError
from specpipe.pipeline.store.folder import COSTS, SHARDS, SUMMARY, RunFolder
from specpipe.pipeline.store.manifest import Manifest
from specpipe.pipeline.store.timeline_file import parquet_bytes, peaks_of
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.telemetry.run_summary import RunFacts, summarise


def build_summary(
    folder: RunFolder,
    manifest: Manifest,
    shards: pa.Table,
    *,
    failed_shards: Mapping[int, str],
    workers: Mapping[str, Mapping[str, Any]],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the summary of all parts published so far. `shards`: their shard table."""
    facts = RunFacts(
        total_rows=manifest.rows,
        total_shards=len(manifest.shards),
        failed_shards=failed_shards,
        starts=folder.epoch(),
        synthetic=manifest.synthetic,
        **peaks_of(folder),
        workers=workers,
        versions=versions,
    )
    return {"name": manifest.tuning.get("name", "job"), "run_id": manifest.run_id, **summarise(shards, facts)}


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Returns the latest summary; empty where it is missing or invalid, because it can be rebuilt from the parts."""
    try:
        summary = json.loads(folder.read(SUMMARY) or b"{}")
    except ValueError:
        return {}
    return summary if isinstance(summary, dict) else {}


def has_results(folder: RunFolder, shards: int) -> bool:
    """Returns whether results of all `shards` parts exist. A start killed after its last part has not written them."""
    try:
        rows = pq.read_metadata(pa.BufferReader(folder.read(SHARDS) or b"")).num_rows
    except (pa.ArrowException, OSError):
        return False
    return rows == shards and bool(read_summary(folder).get("complete"))


def publish_results(folder: RunFolder, shards: pa.Table, summary: Mapping[str, Any]) -> None:
    """Publishes the shard table, then the summary, so that readers of the summary find the table."""
    folder.publish(SHARDS, parquet_bytes(shards))
    folder.publish(SUMMARY, (json.dumps(summary, indent=1, ensure_ascii=False) + "\n").encode())


def publish_costs(folder: RunFolder, costs: Mapping[str, RoundCosts]) -> None:
    """Publishes measured round costs by hardware, from which the report compares values of K."""
    measured = {hardware: known.to_json() for hardware, known in sorted(costs.items()) if known}
    if measured:
        folder.publish(COSTS, (json.dumps(measured, indent=1) + "\n").encode())


def exit_code_of(summary: Mapping[str, Any], max_failed_rows: int) -> int:
    """Returns the exit code of a run that ended by itself."""
    succeeded = summary["complete"] and summary["failed"] <= max_failed_rows
    return EXIT_COMPLETE if succeeded else EXIT_INCOMPLETE


def exit_code_of_error(error: BaseException) -> int:
    """Returns the exit code of a run that an exception ended."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return error.exit_code if isinstance(error, SpecpipeError) else EXIT_FAILED
