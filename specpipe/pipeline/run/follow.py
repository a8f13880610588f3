"""Following a run by its folder alone, from any machine that can read it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from specpipe.errors import EXIT_FAILED
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.inspection import inspect_run
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import require_manifest
from specpipe.pipeline.store.progress_file import EVERY_S, ProgressBeat, read_beat
from specpipe.pipeline.store.results import exit_code_of

_SILENT_S = 2 * EVERY_S  # a file that rests for longer makes a follower ask who holds the run's lock
DIED = "died"


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowEnd:
    """How the followed start ended."""

    state: str
    """complete, incomplete, interrupted, failed or died: its driver is gone and has not said why."""
    exit_code: int
    """That of `specpipe run`."""


def follow(path: str, show: Callable[[Progress], None], *, every_s: float = 1.0) -> FollowEnd:
    """Calls `show` whenever a live run has news; returns when its latest start has ended. Writes nothing.

    Raises OutputError for a folder that is no run's.
    """
    folder = RunFolder.at(path)
    lock, last = folder.lock(), read_beat(folder)
    since = float("-inf")  # who holds the lock is asked first, then whenever the file rests
    while True:
        if last is not None and last.exit_code is None and last.progress is not None:
            show(last.progress)
        while (now := read_beat(folder)) == last:
            if time.monotonic() - since > _SILENT_S:
                since = time.monotonic()
                if lock.holder() is None and read_beat(folder) == last:
                    return _ended(folder, last)
            time.sleep(every_s)
        last, since = now, time.monotonic()
        if last is not None and last.exit_code is not None:
            return _ended(folder, last)


def _ended(folder: RunFolder, last: ProgressBeat | None) -> FollowEnd:
    """Of a start that has said how it ended, or of a run that nobody holds."""
    if last is not None:
        if last.exit_code is None:
            return FollowEnd(state=DIED, exit_code=EXIT_FAILED)
        return FollowEnd(state=last.state, exit_code=last.exit_code)
    manifest = require_manifest(folder)
    summary = inspect_run(folder.path)
    if not summary["complete"]:
        return FollowEnd(state=DIED, exit_code=EXIT_FAILED)
    code = exit_code_of(summary, int(manifest.tuning.get("output.max_failed_rows", 0)))
    return FollowEnd(state="complete", exit_code=code)
