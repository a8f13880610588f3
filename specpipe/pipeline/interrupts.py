"""Handling of Ctrl-C: the first drains the run, the second aborts it; while Ray starts, an abort waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def drain_on_interrupt(drain: Callable[[], None]) -> Iterator[None]:
    """Calls `drain` on the first SIGINT or SIGTERM; the second raises KeyboardInterrupt.

    `drain` runs inside a signal handler: it may only set a flag and put to a SimpleQueue. Outside the main thread,
    where Python allows no signal handlers, the block runs without them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    draining = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal draining
        if draining:
            raise KeyboardInterrupt
        draining = True
        drain()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Defers the first SIGINT to the end of the block, which then raises KeyboardInterrupt; the second raises at once.

    Used while Ray starts: an interrupt in the middle of it ends the process with a segmentation fault.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal deferred
        if deferred:
            raise KeyboardInterrupt
        deferred = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if deferred:
        raise KeyboardInterrupt
