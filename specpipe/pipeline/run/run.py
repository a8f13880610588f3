"""A run from a job to its exit code, or what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specpipe.errors import EXIT_INTERRUPTED
from specpipe.job import JobSpec
from specpipe.pipeline.cluster.backend import Backend, RayBackend
from specpipe.pipeline.driver.config import DriverResult
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.ending import leave
from specpipe.pipeline.run.opened import OpenedRun, open_run
from specpipe.pipeline.run.prepare import prepare
from specpipe.pipeline.run.start import Start
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import Manifest
from specpipe.pipeline.store.results import exit_code_of


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
            return _finished(opened, opened.manifest, DriverResult(), state="already complete")
        viewer, backend = viewer or Viewer(), backend or RayBackend()
        viewer.announce(opened.headline)
        with backend.connect(job) as placement:
            start = Start(opened, placement, backend, viewer.progress)
            outcome = start.run()
            state: Literal["interrupted"] | None = "interrupted" if outcome.interrupted else None
            result = _finished(opened, start.manifest, outcome, state=state)
            start.progress.end(result.state, result.exit_code)
            return result


def _finished(
    opened: OpenedRun,
    manifest: Manifest,
    outcome: DriverResult,
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
