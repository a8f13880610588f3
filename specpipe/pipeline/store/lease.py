"""Lease on an output folder in an object store, which has no locks: a heartbeat that others watch. Advisory."""

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
_SILENT_BEATS = 3  # an owner that misses this many counts as dead


class RunLease:
    """Small object that holds its owner's name and a counter, which the owner increments every few seconds.

    Clocks of different machines are never compared: a start that finds a lease watches whether the counter changes.
    After a crash the next start waits for three beats, on the owner's own machine not at all. Two simultaneous starts
    may both acquire the lease. Then the epoch stops the older one, and atomic publishes under fixed names keep the
    outputs correct.
    """

    def __init__(
        self,
        read: Callable[[], bytes | None],
        write: Callable[[bytes], None],
        *,
        name: str,
        beat_s: float = BEAT_S,
    ) -> None:
        """`read` and `write` get and put the whole object. `name` is the folder's, for messages."""
        self._read, self._write, self._name, self._beat_s = read, write, name, beat_s
        self._id = uuid.uuid4().hex
        self._beats = 0
        self._released = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self) -> None:
        """Acquires the lease. Raises OutputError that names the owner when a live run holds it."""
        if owner := self.holder():
            raise OutputError(
                f"{self._name} is being written by a live run ({owner}). Wait for it, stop it with Ctrl-C, or choose "
                "another output.path"
            )
        self._beat()
        self._heart = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._heart.start()

    def holder(self) -> str | None:
        """Returns the owner; None when the lease is free. May watch for three beats to see whether the owner lives."""
        first = self._read_lease()
        if first is None or _is_dead_on_this_machine(first):
            return None
        limit = time.monotonic() + _SILENT_BEATS * self._beat_s
        while time.monotonic() < limit:
            time.sleep(self._beat_s / 5)
            now = self._read_lease()
            if now is None:
                return None
            if now != first:
                return f"pid {now.get('pid')} on {now.get('host')}, since {now.get('since')}"
        return None

    def release(self) -> None:
        """Releases the lease, unless another start holds it by now."""
        if self._heart is None:
            return
        self._released.set()
        self._heart.join()
        self._heart = None
        lease = self._read_lease()
        if lease is not None and lease.get("owner") == self._id:
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
            log.warning(
                "the lease on %s could not be released; the next start waits until it expires: %s", self._name, failure
            )

    def _renew(self) -> None:
        """Body of the heartbeat thread."""
        while not self._released.wait(self._beat_s):
            try:
                lease = self._read_lease()
                if lease is not None and lease.get("owner") != self._id:
                    log.warning(
                        "another start has acquired the lease on %s; the epoch decides which one stops", self._name
                    )
                    return
                self._beat()
            except (OSError, OutputError) as error:  # the store may be unavailable for a moment only
                log.warning("the lease on %s could not be renewed: %s", self._name, error)

    def _beat(self) -> None:
        """Writes the lease with the next count."""
        self._beats += 1
        lease = {
            "owner": self._id,
            "beat": self._beats,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "processes": _pid_namespace(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        self._write(json.dumps(lease).encode())

    def _read_lease(self) -> dict[str, Any] | None:
        """Returns the present lease; None where there is none, or a released or invalid one."""
        try:
            lease = json.loads(self._read() or b"{}")
        except ValueError:
            return None
        return lease if isinstance(lease, dict) and "owner" in lease else None


def _pid_namespace() -> str:
    """Returns an identifier of the namespace of process ids: the machine's boot and the container's namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"


def _is_dead_on_this_machine(lease: dict[str, Any]) -> bool:
    """Returns whether the owner was a process of this machine that has ended."""
    if lease.get("processes") != _pid_namespace() or not isinstance(lease.get("pid"), int):
        return False
    return not os.path.exists(f"/proc/{lease['pid']}")
