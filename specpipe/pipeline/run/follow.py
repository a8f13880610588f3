"""Following a run by its folder, from any machine that can read it."""

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

_SILENT_S = 2 * EVERY_S  # a progress file that is older makes a follower check whether a run holds the lock
DIED = "died"


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowEnd:
    """The end of a followed start."""

    state: str
    """complete, incomplete, interrupted, failed or died: its driver is gone and wrote no final state."""
    exit_code: int
    """Exit code of `specpipe run`."""


def follow(path: str, show: Callable[[Progress], None], *, every_s: float = 1.0) -> FollowEnd:
    """Calls `show` with every new snapshot of a live run. Returns when the latest start has ended. Writes nothing.

    Reads the progress file every `every_s` seconds. Raises OutputError for a folder without a run.
    """
    folder = RunFolder.at(path)
    lock, last = folder.lock(), read_beat(folder)
    checked_at = float("-inf")  # the lock is checked at first, then whenever the file stays the same for long
    while True:
        if last is not None and last.exit_code is None and last.progress is not None:
            show(last.progress)
        while (latest := read_beat(folder)) == last:
            if time.monotonic() - checked_at > _SILENT_S:
                checked_at = time.monotonic()
                if lock.holder() is None and read_beat(folder) == last:
                    return _end_of(folder, last)
            time.sleep(every_s)
        last, checked_at = latest, time.monotonic()
        if last is not None and last.exit_code is not None:
            return _end_of(folder, last)


def _end_of(folder: RunFolder, last: ProgressBeat | None) -> FollowEnd:
    """Returns the end that the latest start wrote; for a start that wrote none, what the folder shows."""
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
