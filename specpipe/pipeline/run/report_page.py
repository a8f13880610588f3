"""Writer of report.html. The report is made from the files of the run's folder, so that it can be made again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from specpipe.pipeline.run.inspection import view_run
from specpipe.pipeline.run.report_rows import answers, failed_rows, row_figures
from specpipe.pipeline.store.folder import COSTS, REPORT, RunFolder
from specpipe.pipeline.store.manifest import Manifest
from specpipe.pipeline.store.timeline_file import read_timelines
from specpipe.speculation.estimates.round_costs import RoundCosts

if TYPE_CHECKING:
    from specpipe.report import RunSource

log = logging.getLogger(__name__)


def report_of(path: str) -> str:
    """Returns the report of a run's folder, live or finished, as HTML. Writes nothing. Raises OutputError."""
    from specpipe.report import render_run

    view = view_run(path)
    return render_run(_source(view.folder, view.manifest, view.shards, view.summary, str(view.summary["state"])))


def write_report(
    folder: RunFolder, manifest: Manifest, shards: pa.Table, summary: Mapping[str, Any], state: str
) -> None:
    """Publishes report.html. A failure is logged as a warning: it never fails a run."""
    try:
        from specpipe.report import render_run

        page = render_run(_source(folder, manifest, shards, summary, state))
        folder.publish(REPORT, page.encode("utf-8", "replace"))
    except Exception as error:
        log.warning("%s could not be written: %s: %s", folder.file(REPORT), type(error).__name__, error)


def _source(
    folder: RunFolder, manifest: Manifest, shards: pa.Table, summary: Mapping[str, Any], state: str
) -> RunSource:
    from specpipe.report import RunSource

    return RunSource(
        folder=folder.path,
        state=state,
        summary=summary,
        identity=manifest.identity,
        tuning=manifest.tuning,
        created_at=manifest.created_at,
        shards=shards,
        timelines=read_timelines(folder),
        costs=read_costs(folder),
        errors=failed_rows(folder, shards.filter(pc.greater(shards["failed_rows"], 0))["shard"].to_pylist()),
        answers=answers(folder, manifest, shards["shard"].to_pylist()),
        rows=row_figures(folder, manifest, shards["shard"].to_pylist()),
    )


def read_costs(folder: RunFolder) -> RoundCosts | None:
    """Returns the round costs of the hardware that ran most rounds; None without a readable file."""
    try:
        known = json.loads(folder.read(COSTS) or b"{}").values()
        most = max(known, key=lambda costs: costs["rounds"], default=None)
        return most and RoundCosts.from_json(most)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s holds no round costs that this version can read and is ignored: %s", folder.file(COSTS), error)
        return None
