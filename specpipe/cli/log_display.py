"""Progress of a run as log records, for log collectors."""

from __future__ import annotations

import dataclasses
import logging
import time
from types import TracebackType
from typing import Protocol

from specpipe.cli.run_display import RunDisplay
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.logs import with_fields
from specpipe.pipeline.run.run import RunResult

log = logging.getLogger(__name__)
_INTERVAL_S = 5.0


class Display(Protocol):
    """Shows the progress of a run while its block runs."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def announce(self, line: str) -> None:
        """Shows one line of text."""
        ...

    def show(self, progress: Progress) -> None:
        """Shows a snapshot; may skip some."""
        ...


class LogDisplay:
    """Display that logs a record every few seconds, with the fields of Progress."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> LogDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def announce(self, line: str) -> None:
        """Logs one line of text."""
        log.info("%s", line)

    def show(self, progress: Progress) -> None:
        """Logs a snapshot if the last one is some seconds old."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _INTERVAL_S
            log.info("progress", extra=with_fields(**dataclasses.asdict(progress)))


def display_for(name: str, *, as_json: bool) -> Display:
    """Returns the display of a job: on the terminal, or as log records."""
    return LogDisplay() if as_json else RunDisplay(name)


def log_result(result: RunResult) -> None:
    """Logs how a run ended, with the numbers and strings of its summary as fields."""
    figures = {key: value for key, value in result.summary.items() if isinstance(value, int | float | str)}
    facts = {**figures, "state": result.state, "exit_code": result.exit_code, "folder": result.folder}
    log.info("%s", result.state, extra=with_fields(**facts))
