"""A run of a job, from the job to the exit code.

`execute` is the entry point of the command line and the Python interface. `Run` is one start of a run: it reads what
earlier starts have published, drives the workers, and publishes telemetry, summary and report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specpipe.core import KVScaleTable, Shard
from specpipe.errors import EXIT_INTERRUPTED, JobError, OutputError
from specpipe.job import JobSpec
from specpipe.pipeline.cluster.backend import Backend, RayBackend
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.config import DriverConfig, DriverResult, Observers
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.driver.progress_tracker import EarlierProgress
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.interrupts import drain_on_interrupt
from specpipe.pipeline.job_check import check_memory
from specpipe.pipeline.logs import log_fields
from specpipe.pipeline.prepare import PreparedJob, prepare
from specpipe.pipeline.replay.answer_sources import find_answer_files
from specpipe.pipeline.replay.run_answers import publish_answers
from specpipe.pipeline.run.report_page import write_report
from specpipe.pipeline.run.versions import versions
from specpipe.pipeline.store.folder import MANIFEST, RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import Manifest, new_manifest, read_manifest
from specpipe.pipeline.store.progress_file import ProgressFile
from specpipe.pipeline.store.results import (
    build_summary,
    exit_code_of,
    exit_code_of_error,
    has_results,
    publish_costs,
    publish_results,
)
from specpipe.pipeline.store.resume_check import check_resumable
from specpipe.pipeline.store.timeline_file import TimelineFile
from specpipe.pipeline.tuning import job_cost_cache, job_estimates, job_policy
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.telemetry.metrics import run_label
from specpipe.telemetry.shard_log import ShardLog

log = logging.getLogger(__name__)
_TIMELINE_WORKERS = 100  # more workers than this lengthen timeline intervals, so that its rows per second stay bounded
EndState = Literal["already complete", "interrupted", "failed"]
"""End of a start in which the driver did not run to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of one start."""

    folder: str
    """Absolute path or URI of the output folder."""
    state: Literal["complete", "already complete", "incomplete", "interrupted"]
    exit_code: int
    """Exit code of `specpipe run`."""
    summary: Mapping[str, Any]
    """Content of summary.json."""
    wall_s: float = 0.0
    """Seconds of this start, with planning, Ray's start, loading and warm-up."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Callbacks that show a run. They are called on the driver's thread."""

    announce: Callable[[str], None] = lambda line: None
    """Receives one line per step before the workers run."""
    progress: Callable[[Progress], None] = lambda progress: None
    """Receives a snapshot about once a second."""


def execute(
    job: JobSpec, *, viewer: Viewer | None = None, backend: Backend | None = None, retry_failed: bool = False
) -> RunResult:
    """Runs a job, or the shards of it that earlier starts have not published. Blocks.

    `backend`: where workers run; Ray by default. `retry_failed`: also run published rows again that have an error; all
    other rows of their parts stay as they are.

    Raises SpecpipeError for what the user must correct, and KeyboardInterrupt when interrupted twice. Published parts
    stay in either case, and a later start continues from them.
    """
    began = time.monotonic()
    viewer, backend = viewer or Viewer(), backend or RayBackend()
    folder = RunFolder.at(job.output.path)
    folder.claim()
    prepared = prepare(job)
    with folder.lock():
        run = Run(prepared, folder, retry_failed=retry_failed)
        if run.is_complete:
            return run.close("already complete")
        viewer.announce(run.headline)
        if (line := run.index_answers()) is not None:
            viewer.announce(line)
        if backend.waits_for:
            viewer.announce(backend.waits_for)
        with backend.connect(job) as placement:
            return replace(run.drive(placement, backend, viewer.progress), wall_s=time.monotonic() - began)


class Run:
    """One start of a run; the output folder is locked.

    The constructor reads the folder. `drive` runs the remaining shards and closes the run; `close` alone is for a run
    without remaining shards.
    """

    def __init__(self, prepared: PreparedJob, folder: RunFolder, *, retry_failed: bool = False) -> None:
        """Reads the manifest and the published parts. Raises OutputError when the folder holds a run of another job."""
        self._prepared, self._job, self._folder = prepared, prepared.job, folder
        self._manifest: Manifest | None = read_manifest(folder)
        self._published = ShardLog()
        """Records of all published parts: of earlier starts, then of this one as its shards finish."""
        self._failed_rows: Mapping[int, int] = {}
        """Published rows to run again, by shard."""
        self._result = DriverResult()
        self._log_folder = ""
        self._answers = ""
        """Index of the earlier answers that rows follow; "" where they follow none."""
        self._progress_file: ProgressFile
        self._timeline_file: TimelineFile
        self._estimates: RunEstimates
        if self._manifest is not None:
            check_resumable(self._manifest, prepared.identity, folder)
            self._published = read_ledger(folder, self._manifest.shards, self._manifest.run_id)
            folder.delete_attempts()
            if retry_failed:
                self._failed_rows = self._published.failed_rows()

    @property
    def is_complete(self) -> bool:
        """True if every shard is published and no row is to be run again."""
        shards = None if self._manifest is None else len(self._manifest.shards)
        return len(self._published) == shards and not self._failed_rows

    @property
    def headline(self) -> str:
        """One line with the name of the run, its rows, its folder and what is already done."""
        rows = sum(file.rows for file in self._prepared.files)
        rows = min(rows, self._job.data.limit or rows) * self._job.sampling.n
        line = f"{self._job.name}: {rows:,} rows → {self._folder.path}"
        if self._manifest is not None:
            line += f", {len(self._published)} of {len(self._manifest.shards)} shards done"
        if self._failed_rows:
            line += f", {sum(self._failed_rows.values()):,} failed rows run again"
        return line

    def index_answers(self) -> str | None:
        """Publishes the index of `speculation.replay`. Returns one line about it; None for a job without.

        Raises DataError for answers that the job cannot follow, and OutputError.
        """
        where = ", ".join(self._job.speculation.replay)
        if not where or not self._job.speculation.replay_k:
            return None
        files = find_answer_files(self._prepared)
        if not files:
            return f"no earlier answers in {where} yet"
        self._answers, rows = publish_answers(self._folder, files)
        return f"rows follow {rows:,} earlier answers in {where}"

    # driving

    def drive(self, placement: Placement, backend: Backend, watch: Callable[[Progress], None]) -> RunResult:
        """Runs the remaining shards and closes the run. Blocks.

        `watch` receives snapshots on the driver's thread. When an error ends the run early, its telemetry is published
        before the error is raised; a newer start that owns the folder ends the run without any more writes.
        """
        if not placement.elastic:
            check_memory(self._prepared, workers=placement.workers, device=placement.device)
        self._log_folder = placement.logs
        manifest = self._manifest = self._current_manifest(placement)
        config = self._begin_epoch(manifest, placement)
        cache = job_cost_cache(self._prepared)
        self._estimates = job_estimates(self._job, self._published.table(), cache)
        driver = self._make_driver(manifest, config, placement, backend, watch)
        self._result = driver.result
        try:
            with log_fields(run=run_label(self._job.name, manifest.run_id)), drain_on_interrupt(driver.drain):
                driver.run()
        except StaleRunError:
            raise
        except BaseException as error:
            self._close_after(error)
            raise
        if self._result.failed or len(self._result.workers) > placement.workers:
            self._log_where_worker_logs_are()
        self._publish_tuning()
        if cache is not None:
            cache.save(self._estimates.costs)
        result = self.close("interrupted" if self._result.interrupted else None)
        self._progress_file.end(result.state, result.exit_code)
        return result

    def _begin_epoch(self, manifest: Manifest, placement: Placement) -> WorkerConfig:
        """Makes this start the latest one, publishes the manifest and returns the configuration of the workers."""
        folder, epoch = self._folder, self._folder.begin_epoch()  # workers of older starts can no longer publish
        folder.publish(MANIFEST, manifest.to_json().encode())
        self._timeline_file, self._progress_file = TimelineFile(folder, epoch), ProgressFile(folder, epoch)
        return WorkerConfig(
            prepared=self._prepared,
            folder=folder,
            run_id=manifest.run_id,
            epoch=epoch,
            probe=folder.write_probe(),
            device=placement.device,
            threads=placement.threads,
            timeline_interval_s=max(1, placement.workers // _TIMELINE_WORKERS),
            kv_scales=manifest.kv_scales,
            answers=self._answers,
        )

    def _current_manifest(self, placement: Placement) -> Manifest:
        """Returns the run's manifest with this start's tuning; for a new run, one with its shards."""
        prepared = self._prepared
        if self._manifest is not None:
            return replace(self._manifest, tuning=prepared.tuning)
        shards = prepared.shards(prepared.shared_blocks(), workers=placement.workers, device=placement.device)
        synthetic = self._job.speculation.method == "synthetic"
        manifest = new_manifest(
            prepared.identity, prepared.tuning, shards, synthetic=synthetic, vocabulary=prepared.vocabulary()
        )
        # A run whose manifest was deleted has published parts.
        self._published.extend(read_ledger(self._folder, shards, manifest.run_id).table())
        return manifest

    def _make_driver(
        self,
        manifest: Manifest,
        config: WorkerConfig,
        placement: Placement,
        backend: Backend,
        watch: Callable[[Progress], None],
    ) -> Driver:
        watchers = (watch, self._progress_file.add, backend.watcher(config))

        def show(progress: Progress) -> None:
            for watcher in watchers:
                watcher(progress)

        return Driver(
            self._remaining(manifest),
            backend.pool(config, placement),
            job_policy(self._job),
            DriverConfig.from_job(self._job, workers=placement.workers),
            failed_rows=self._failed_rows,
            earlier=EarlierProgress.from_shards(self._published.table(), self._failed_rows),
            estimates=self._estimates,
            observers=Observers(
                progress=show,
                published=lambda report: self._published.add(report.telemetry),
                samples=self._timeline_file.add,
                kv_scales=self._keep_kv_scales,
            ),
            kv_scales=manifest.kv_scales,
        )

    def _keep_kv_scales(self, scales: KVScaleTable) -> None:
        """Publishes the manifest with the run's scales, so that resumed runs compute with the same ones."""
        assert self._manifest is not None, "workers run"
        self._manifest = replace(self._manifest, kv_scales=scales)
        self._folder.publish(MANIFEST, self._manifest.to_json().encode())

    def _remaining(self, manifest: Manifest) -> list[Shard]:
        """Returns the shards that are not published, and those with rows to run again."""
        published, again = self._published, self._failed_rows
        return [shard for shard in manifest.shards if shard.index not in published or shard.index in again]

    # closing

    def close(self, state: EndState | None) -> RunResult:
        """Publishes telemetry, summary and report of all published parts.

        `state`: None when the driver ran to its end, which makes the run complete or incomplete.
        """
        summary = self._publish_results(state)
        code = exit_code_of(summary, self._job.output.max_failed_rows)
        finished: Literal["complete", "incomplete"] = "complete" if summary["complete"] else "incomplete"
        return RunResult(
            folder=self._folder.path,
            state=finished if state is None or state == "failed" else state,
            exit_code=EXIT_INTERRUPTED if state == "interrupted" else code,
            summary=summary,
        )

    def _close_after(self, error: BaseException) -> None:
        """Publishes telemetry and results after an error that ended the run early. Raises nothing itself."""
        if not isinstance(error, JobError | KeyboardInterrupt):
            self._log_where_worker_logs_are()
        state: EndState = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self._publish_tuning()
            self._publish_results(state)
        except (OutputError, OSError) as failure:  # must not replace the first error; the next start writes the files
            log.warning("telemetry could not be written: %s", failure)
        self._progress_file.end(state, exit_code_of_error(error))

    def _publish_tuning(self) -> None:
        """Publishes the timeline, with the decisions of the policy, and the measured round costs."""
        self._timeline_file.publish()
        publish_costs(self._folder, self._estimates.costs)

    def _publish_results(self, state: EndState | None) -> Mapping[str, Any]:
        """Publishes the shard table, summary.json and report.html, and returns the summary."""
        folder, manifest = self._folder, self._manifest
        assert manifest is not None, "a run without a manifest is not complete"
        # Two workers may have published these: the part's footer has the record of the one that did.
        uncertain = [manifest.shards[shard] for shard in sorted(self._result.maybe_published)]
        self._published.extend(read_ledger(folder, uncertain, manifest.run_id).table())
        shards = self._published.table()
        summary = build_summary(
            folder,
            manifest,
            shards,
            failed_shards=self._result.failed,
            workers={name: info.facts for name, info in self._result.workers.items()},
            versions=versions(),
        )
        if state != "already complete" or not has_results(folder, shards.num_rows):
            publish_results(folder, shards, summary)
            shown = state if state in ("interrupted", "failed") else "complete" if summary["complete"] else "incomplete"
            write_report(folder, manifest, shards, summary, shown)
        return summary

    def _log_where_worker_logs_are(self) -> None:
        if self._log_folder:
            log.warning("logs of the workers are in %s, on the machine of each worker", self._log_folder)
