"""A run as it goes, as records of the log: for collectors, where nobody looks at a terminal."""

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
_EVERY_S = 5.0


class Display(Protocol):
    """Shows a run to whoever watches it. A context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def announce(self, line: str) -> None: ...

    def show(self, progress: Progress) -> None: ...


class LogDisplay:
    """A record every few seconds, with all that Progress knows as fields."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> LogDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def announce(self, line: str) -> None:
        log.info("%s", line)

    def show(self, progress: Progress) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY_S
            log.info("progress", extra=with_fields(**dataclasses.asdict(progress)))


def display_for(name: str, *, as_json: bool) -> Display:
    """A terminal's display of the job `name`, or records of the log."""
    return LogDisplay() if as_json else RunDisplay(name)


def log_result(result: RunResult) -> None:
    """How a run ended: the summary's plain figures as fields."""
    figures = {key: value for key, value in result.summary.items() if isinstance(value, int | float | str)}
    facts = {**figures, "state": result.state, "exit_code": result.exit_code, "folder": result.folder}
    log.info("%s", result.state, extra=with_fields(**facts))
