"""One start of a run: workers, a driver, and what is written of them while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from specpipe.core import BACKUP_S, Shard
from specpipe.errors import JobError, OutputError
from specpipe.pipeline.cluster.backend import Backend
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.config import DriverConfig, DriverResult, Observers
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.driver.progress_tracker import Earlier
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.interrupts import drain_on_interrupt
from specpipe.pipeline.logs import log_fields
from specpipe.pipeline.messages import Pool
from specpipe.pipeline.run.ending import Ended, leave
from specpipe.pipeline.run.opened import OpenedRun
from specpipe.pipeline.run.prepare import Prepared
from specpipe.pipeline.store.folder import MANIFEST, RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import Manifest, new_manifest
from specpipe.pipeline.store.progress_file import ProgressFile, call_all
from specpipe.pipeline.store.results import exit_code_of_error, publish_costs
from specpipe.pipeline.store.timeline_file import TimelineFile
from specpipe.pipeline.tuning import cost_cache_of, learning_of, policy_of
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.speculation.run_estimates import RunEstimates
from specpipe.telemetry.metrics import run_label
from specpipe.telemetry.shard_table import acceptance, total

log = logging.getLogger(__name__)
_TIMELINE_WORKERS = 100  # with more workers the timeline's intervals grow, so that its rows per second do not


class Start:
    """Of a run whose folder is ours."""

    def __init__(
        self, opened: OpenedRun, placement: Placement, backend: Backend, watch: Callable[[Progress], None]
    ) -> None:
        """Begins an epoch: workers of older starts publish nothing from here on. `watch`: called as the run goes."""
        prepared, folder = opened.prepared, opened.folder
        self._opened, self._placement = opened, placement
        self.manifest = _manifest(opened, placement)
        epoch = folder.begin_epoch()
        folder.publish(MANIFEST, self.manifest.to_json().encode())
        config = _worker_config(prepared, folder, self.manifest, placement, epoch)
        self._timeline, self.progress = TimelineFile(folder, epoch), ProgressFile(folder, epoch)
        observers = Observers(
            progress=call_all(watch, self.progress.add, backend.watcher(config)),
            published=lambda report: opened.done.add(report.telemetry),
            samples=self._timeline.add,
        )
        self._cache = cost_cache_of(prepared.job, prepared.target, prepared.draft)
        self._learning = learning_of(prepared.job, opened.done.table(), self._cache)
        pool = backend.pool(config, placement)
        self._driver = _driver(opened, self.manifest, config, placement, pool, observers, self._learning)

    def run(self) -> DriverResult:
        """Blocks. Raises what ends the run before its time, once what there is to tell of it is written."""
        job, outcome = self._opened.prepared.job, self._driver.outcome
        try:
            with log_fields(run=run_label(job.name, self.manifest.run_id)), drain_on_interrupt(self._driver.drain):
                self._driver.run()
        except StaleRunError:
            raise
        except BaseException as error:
            self._broken_off(error)
            raise
        if outcome.failed or len(outcome.workers) > self._placement.workers:
            self._point_to_logs()
        self._publish_tuning()
        if self._cache is not None:
            self._cache.save(self._learning.tables)
        return outcome

    def _broken_off(self, error: BaseException) -> None:
        if not isinstance(error, JobError | KeyboardInterrupt):
            self._point_to_logs()
        state: Ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self._publish_tuning()
            leave(self._opened, self.manifest, self._driver.outcome, state)
        except (OutputError, OSError) as failure:  # must not hide what ended the run; the next start writes them
            log.warning("telemetry could not be written: %s", failure)
        self.progress.end(state, exit_code_of_error(error))

    def _publish_tuning(self) -> None:
        """What was decided and why, and what rounds took."""
        self._timeline.publish()
        publish_costs(self._opened.folder, self._learning.tables)

    def _point_to_logs(self) -> None:
        if self._placement.logs:
            log.warning("what the workers said is in %s, on the machine of each", self._placement.logs)


def _manifest(opened: OpenedRun, placement: Placement) -> Manifest:
    """The run's, with this start's tuning; of a new run, with its shards."""
    prepared = opened.prepared
    if opened.manifest is not None:
        return replace(opened.manifest, tuning=prepared.tuning)
    shards = prepared.shards(workers=placement.workers, device=placement.device)
    synthetic = prepared.job.speculation.method == "synthetic"
    manifest = new_manifest(prepared.identity, prepared.tuning, shards, synthetic=synthetic)
    opened.done.extend(read_ledger(opened.folder, shards, manifest.run_id).table())  # whose manifest was lost
    return manifest


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
    learning: RunEstimates,
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
