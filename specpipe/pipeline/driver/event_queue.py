"""What happens elsewhere, handled on one thread: in the order in which it came, one at a time, so nothing is locked."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any


class EventQueue:
    """`when_done` and `wake` may be called from any thread, and from signal handlers; `handle` has one caller."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def when_done(self, future: Future[Any], handle: Callable[[Future[Any]], None]) -> None:
        """Handle the future's end."""
        future.add_done_callback(lambda done: self._events.put(partial(handle, done)))

    def wake(self) -> None:
        """Let a `handle` that waits come back."""
        self._events.put(lambda: None)

    def handle(self, *, until: float) -> None:
        """Run what has happened; wait for it, but not beyond `until` (`time.monotonic`). Raises what a handler does."""
        try:
            self._events.get(timeout=max(0.0, until - time.monotonic()))()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return
