"""One start of a run, from a job to its exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specpipe.core import Shard
from specpipe.errors import EXIT_INTERRUPTED, JobError, OutputError
from specpipe.job import JobSpec
from specpipe.pipeline.assemble import WorkerConfig
from specpipe.pipeline.cluster import Backend, Placement, RayBackend
from specpipe.pipeline.driver import Driver
from specpipe.pipeline.driver_contract import DriverConfig, Observers, Outcome
from specpipe.pipeline.ending import Ended, leave
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.folder import MANIFEST, RunFolder
from specpipe.pipeline.handles import Pool
from specpipe.pipeline.interrupts import drain_on_interrupt
from specpipe.pipeline.ledger import read_ledger
from specpipe.pipeline.logs import log_fields
from specpipe.pipeline.manifest import Manifest, new_manifest
from specpipe.pipeline.opened import OpenedRun, open_run
from specpipe.pipeline.policies import cost_cache_of, learning_of, policy_of
from specpipe.pipeline.prepare import Prepared, prepare
from specpipe.pipeline.progress import Progress
from specpipe.pipeline.progress_log import ProgressLog, tell_all
from specpipe.pipeline.results import (
    exit_code_of,
    exit_code_of_error,
    publish_costs,
)
from specpipe.pipeline.scoreboard import Earlier
from specpipe.pipeline.timeline_log import TimelineLog
from specpipe.speculation.learning import Learning
from specpipe.telemetry.metrics import run_label
from specpipe.telemetry.sums import acceptance, total

log = logging.getLogger(__name__)
BACKUP_S = 10.0
"""Shards that run for longer than this at the end are given to an idle worker too."""
_TIMELINE_WORKERS = 100  # with more workers the timeline's intervals grow, so that its rows per second do not


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What a start came to."""

    folder: str
    state: Literal["complete", "already complete", "incomplete", "interrupted"]
    exit_code: int
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who watches a run. Called on the driver's thread."""

    announce: Callable[[str], None] = lambda line: None
    """One line, once a step before the workers run."""
    progress: Callable[[Progress], None] = lambda progress: None


def execute(
    job: JobSpec, *, viewer: Viewer | None = None, backend: Backend | None = None, retry_failed: bool = False
) -> RunResult:
    """Run a job, or what is left of it. Blocks. Workers are Ray's unless another backend is given.

    `retry_failed`: published rows with an error, too; their parts are published anew, the other rows as they were.

    Raises SpecpipeError for what the user must mend, KeyboardInterrupt when interrupted twice; what was published
    stays, and a later start goes on from there.
    """
    folder = RunFolder.at(job.output.path)
    folder.claim()
    prepared = prepare(job)
    with folder.lock():
        opened = open_run(prepared, folder, retry_failed=retry_failed)
        if opened.manifest is not None and opened.is_complete:
            return _finished(opened, opened.manifest, Outcome(), state="already complete")
        viewer, backend = viewer or Viewer(), backend or RayBackend()
        viewer.announce(opened.headline)
        with backend.connect(job) as placement:
            return _start(opened, placement, backend, viewer)


def _start(opened: OpenedRun, placement: Placement, backend: Backend, viewer: Viewer) -> RunResult:
    prepared, folder, job = opened.prepared, opened.folder, opened.prepared.job
    if opened.manifest is None:
        shards = prepared.shards(workers=placement.workers, device=placement.device)
        synthetic = job.speculation.method == "synthetic"
        manifest = new_manifest(prepared.identity, prepared.tuning, shards, synthetic=synthetic)
        opened.done.extend(read_ledger(folder, shards, manifest.run_id).table())  # whose manifest was lost
    else:
        manifest = replace(opened.manifest, tuning=prepared.tuning)
    epoch = folder.begin_epoch()
    folder.publish(MANIFEST, manifest.to_json().encode())
    config = _worker_config(prepared, folder, manifest, placement, epoch)
    timeline, progress = TimelineLog(folder, epoch), ProgressLog(folder, epoch)
    observers = Observers(
        progress=tell_all(viewer.progress, progress.add, backend.watcher(config)),
        published=lambda report: opened.done.add(report.telemetry),
        samples=timeline.add,
    )
    cache = cost_cache_of(job, prepared.target, prepared.draft)
    learning = learning_of(job, opened.done.table(), cache)
    driver = _driver(opened, manifest, config, placement, backend.pool(config, placement), observers, learning)
    try:
        with log_fields(run=run_label(job.name, manifest.run_id)), drain_on_interrupt(driver.drain):
            driver.run()
    except StaleRunError:
        raise
    except BaseException as error:
        if not isinstance(error, JobError | KeyboardInterrupt):
            _point_to_logs(placement)
        state: Ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            timeline.publish()
            publish_costs(folder, learning.tables)
            leave(opened, manifest, driver.outcome, state)
        except (OutputError, OSError) as failure:  # must not hide what ended the run; the next start writes them
            log.warning("telemetry could not be written: %s", failure)
        progress.end(state, exit_code_of_error(error))
        raise
    if driver.outcome.failed or len(driver.outcome.workers) > placement.workers:
        _point_to_logs(placement)
    timeline.publish()
    publish_costs(folder, learning.tables)
    if cache is not None:
        cache.save(learning.tables)
    result = _finished(opened, manifest, driver.outcome, state="interrupted" if driver.outcome.interrupted else None)
    progress.end(result.state, result.exit_code)
    return result


def _point_to_logs(placement: Placement) -> None:
    if placement.logs:
        log.warning("what the workers said is in %s, on the machine of each", placement.logs)


def _worker_config(
    prepared: Prepared, folder: RunFolder, manifest: Manifest, placement: Placement, epoch: int
) -> WorkerConfig:
    return WorkerConfig(
        job=prepared.job,
        folder=folder,
        run_id=manifest.run_id,
        epoch=epoch,
        probe=folder.write_probe(),
        files={file.path: file for file in prepared.files},
        kept_schema=prepared.kept,
        target=prepared.target,
        draft=prepared.draft,
        device=placement.device,
        threads=placement.threads,
        stall_s=prepared.job.workers.stall_seconds,
        timeline_interval_s=max(1, placement.workers // _TIMELINE_WORKERS),
    )


def _driver(
    opened: OpenedRun,
    manifest: Manifest,
    config: WorkerConfig,
    placement: Placement,
    pool: Pool,
    observers: Observers,
    learning: Learning,
) -> Driver:
    job, done, again = config.job, opened.done, opened.failed_rows
    shards = done.table()
    earlier = Earlier(
        shards=len(done) - len(again),
        rows=total(shards, "rows") - sum(again.values()),
        failed_rows=total(shards, "failed_rows") - sum(again.values()),
        acceptance=acceptance(shards),
    )
    driver_config = DriverConfig(
        workers=placement.workers,
        slots=job.workers.slots,
        max_attempts=job.workers.max_attempts,
        backup_s=BACKUP_S,
        stall_s=job.workers.stall_seconds,
        warm_up=job.data.warmup_rows > 0,
    )
    pending: list[Shard] = [shard for shard in manifest.shards if shard.index not in done or shard.index in again]
    return Driver(
        pending,
        pool,
        policy_of(job),
        driver_config,
        failed_rows=again,
        earlier=earlier,
        learning=learning,
        observers=observers,
    )


def _finished(
    opened: OpenedRun,
    manifest: Manifest,
    outcome: Outcome,
    *,
    state: Literal["already complete", "interrupted"] | None,
) -> RunResult:
    """Write what the run leaves, and say how it ended."""
    summary = leave(opened, manifest, outcome, state)
    code = exit_code_of(summary, opened.prepared.job.output.max_failed_rows)
    if state == "interrupted":
        code = EXIT_INTERRUPTED
    return RunResult(
        folder=opened.folder.path,
        state=state or ("complete" if summary["complete"] else "incomplete"),
        exit_code=code,
        summary=summary,
    )
