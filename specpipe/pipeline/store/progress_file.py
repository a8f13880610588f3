"""Progress of the latest start (telemetry/progress.json), for `specpipe show --follow` and other readers."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass

from specpipe.errors import OutputError
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.store.folder import PROGRESS, RunFolder

log = logging.getLogger(__name__)
EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressBeat:
    """Content of the file."""

    epoch: int
    """Number of the start that wrote it, from 1."""
    beat: int
    """Counter of the start's writes. A reader detects by it that the driver lives, without comparing clocks."""
    state: str
    """running, or the final state: complete, incomplete, interrupted or failed."""
    exit_code: int | None
    """None while it runs."""
    progress: Progress | None
    """None for a start that ended before its first snapshot."""


class ProgressFile:
    """Writer of the file, at most every `every_s` seconds. A failed write does not affect the run."""

    def __init__(self, folder: RunFolder, epoch: int, every_s: float = EVERY_S) -> None:
        self._folder, self._epoch, self._every_s = folder, epoch, every_s
        self._beat = 0
        self._last: Progress | None = None
        self._next = 0.0

    def add(self, progress: Progress) -> None:
        """Stores a snapshot, and writes it when the interval has passed."""
        self._last = progress
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every_s
            self._write("running", None)

    def end(self, state: str, exit_code: int) -> None:
        """Writes the final state of this start."""
        self._write(state, exit_code)

    def _write(self, state: str, exit_code: int | None) -> None:
        """Publishes the file with the next count."""
        self._beat += 1
        values = {"epoch": self._epoch, "beat": self._beat, "state": state, "exit_code": exit_code}
        snapshot = None if self._last is None else self._last.to_dict()
        try:
            self._folder.publish(PROGRESS, json.dumps({**values, "progress": snapshot}).encode())
        except OutputError as error:
            log.info("progress cannot be written for followers: %s", error)


def read_beat(folder: RunFolder) -> ProgressBeat | None:
    """Returns the content of the file; None where it is missing or invalid."""
    try:
        values = json.loads(folder.read(PROGRESS) or b"null")
        snapshot = values.pop("progress")
        return ProgressBeat(**values, progress=None if snapshot is None else Progress.from_dict(snapshot))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
