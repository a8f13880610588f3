"""Ctrl-C: once drains, twice aborts; while Ray starts, once aborts when that is safe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def drain_on_interrupt(drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` on the first SIGINT or SIGTERM; the second raises KeyboardInterrupt.

    `drain` runs inside a signal handler: it may set a flag and put to a SimpleQueue, no more. Outside the main
    thread, where Python allows no handlers, this does nothing.
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
    """Hold a SIGINT back until the block ends, which then raises KeyboardInterrupt; the second raises at once.

    For Ray's start: interrupted in the middle of it, its libraries take the process down with a segmentation fault.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if held:
        raise KeyboardInterrupt
