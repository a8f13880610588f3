"""One writer per output folder where no lock holds: a heartbeat that others watch, on their own clocks. Advisory."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from specpipe.errors import OutputError

log = logging.getLogger(__name__)
BEAT_S = 5.0
_SILENT_BEATS = 3  # an owner who misses so many is taken for dead


class RunLease:
    """A small object with its owner's name and a counter that he raises every few seconds.

    Nobody's clock is compared with another's: who finds a lease watches whether the counter moves. After a crash the
    next start waits for three beats, on the owner's own machine not at all. Two starts at the very same time may both
    get it; then the epoch stops the older one, and whole publishes under fixed names keep the outputs right.
    """

    def __init__(
        self,
        read: Callable[[], bytes | None],
        write: Callable[[bytes], None],
        *,
        name: str,
        beat_s: float = BEAT_S,
    ) -> None:
        """`read` and `write` get and put the whole object; `name` is the folder's, for messages."""
        self._read, self._write, self._name, self._beat_s = read, write, name, beat_s
        self._me = uuid.uuid4().hex
        self._beats = 0
        self._released = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self) -> None:
        """Raises OutputError that names the owner when a live run holds it."""
        if owner := self.holder():
            raise OutputError(
                f"{self._name} is being written by a live run ({owner}). Wait for it, stop it with Ctrl-C, or choose "
                "another output.path"
            )
        self._beat()
        self._heart = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._heart.start()

    def holder(self) -> str | None:
        """Who holds it now; None when nobody does. Watches for some beats where that is not plain at once."""
        first = self._look()
        if first is None or _is_dead_here(first):
            return None
        limit = time.monotonic() + _SILENT_BEATS * self._beat_s
        while time.monotonic() < limit:
            time.sleep(self._beat_s / 5)
            now = self._look()
            if now is None:
                return None
            if now != first:
                return f"pid {now.get('pid')} on {now.get('host')}, since {now.get('since')}"
        return None

    def release(self) -> None:
        """Say that nobody holds it, unless another does meanwhile."""
        if self._heart is None:
            return
        self._released.set()
        self._heart.join()
        self._heart = None
        lease = self._look()
        if lease is not None and lease.get("owner") == self._me:
            self._write(b"{}")

    def __enter__(self) -> RunLease:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except (OSError, OutputError) as failure:
            log.warning("the lease on %s could not be given back; the next start waits for it: %s", self._name, failure)

    def _keep(self) -> None:
        while not self._released.wait(self._beat_s):
            try:
                lease = self._look()
                if lease is not None and lease.get("owner") != self._me:
                    log.warning("another start has taken the lease on %s; the epoch decides who stops", self._name)
                    return
                self._beat()
            except (OSError, OutputError) as error:  # a store that is down for a moment; the next beat may get through
                log.warning("the lease on %s could not be renewed: %s", self._name, error)

    def _beat(self) -> None:
        self._beats += 1
        lease = {
            "owner": self._me,
            "beat": self._beats,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "processes": _process_space(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        self._write(json.dumps(lease).encode())

    def _look(self) -> dict[str, Any] | None:
        """The lease as it is; None where there is none, or a released or unreadable one."""
        try:
            lease = json.loads(self._read() or b"{}")
        except ValueError:
            return None
        return lease if isinstance(lease, dict) and "owner" in lease else None


def _process_space() -> str:
    """What process numbers mean: the machine's boot and the container's namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"


def _is_dead_here(lease: dict[str, Any]) -> bool:
    """Whether the owner was a process of this machine that is gone."""
    if lease.get("processes") != _process_space() or not isinstance(lease.get("pid"), int):
        return False
    return not os.path.exists(f"/proc/{lease['pid']}")
