"""Event queue: callbacks of other threads run one at a time on the driver's thread, so no locks are needed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any


class EventQueue:
    """A queue of callbacks, run in order of arrival, and the driver's clock.

    `on_done` and `wake` may be called from any thread, and `wake` from signal handlers; `run` has one caller.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def now(self) -> float:
        """Returns the seconds of a clock that never goes back, by which the driver measures intervals."""
        return time.monotonic()

    def on_done(self, future: Future[Any], callback: Callable[[Future[Any]], None]) -> None:
        """Queues `callback(future)` for when the future completes."""
        future.add_done_callback(lambda done: self._events.put(partial(callback, done)))

    def wake(self) -> None:
        """Makes a waiting `run` return."""
        self._events.put(lambda: None)

    def run(self, *, until: float) -> None:
        """Runs all queued callbacks; waits for the first until `until` (`now`). Raises what they raise."""
        try:
            self._events.get(timeout=max(0.0, until - self.now()))()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return
