"""Lock on an output folder, which the kernel releases when its owner ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from specpipe.errors import OutputError

_PROBE_S = 0.5  # time for which another process may hold the lock only to look for an owner


class RunLock:
    """Exclusive `flock` on a file that holds its owner's name.

    The kernel releases it however the owner ends, so a run can resume at once after a SIGKILL. It works between
    machines on NFS (Linux), but not in object stores.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Acquires the lock. Raises OutputError that names the owner when a live run holds it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115  open for as long as the lock is held
        except OSError as error:
            raise OutputError(
                f"output.path {self._path.parent.parent} cannot be written: {error}. Check its permissions, or "
                "choose another folder"
            ) from error
        if not self._try_lock(file):
            owner = self._owner(file)
            file.close()
            raise OutputError(
                f"{self._path.parent.parent} is being written by a live run ({owner}). Wait for it, stop it with "
                "Ctrl-C, or choose another output.path"
            )
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": since}, file)
        file.flush()
        self._file = file

    @staticmethod
    def _try_lock(file: IO[str]) -> bool:
        """Returns whether the file could be locked. Retries, because `holder` shares the lock for a moment."""
        until = time.monotonic() + _PROBE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)
            else:
                return True

    def holder(self) -> str | None:
        """Returns the live run that holds the lock; None when it is free. Changes nothing."""
        try:
            file = open(self._path, encoding="utf-8")  # noqa: SIM115  closed below
        except OSError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return self._owner(file)
            return None

    def release(self) -> None:
        """Releases the lock, if held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @staticmethod
    def _owner(file: IO[str]) -> str:
        """Returns the owner's process, host and start time."""
        file.seek(0)
        try:
            owner = json.load(file)
            return f"pid {owner['pid']} on {owner['host']}, since {owner['since']}"
        except (ValueError, KeyError, TypeError):
            return "owner not recorded yet"
