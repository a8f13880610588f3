"""One writer per output folder: a lock that dies with its owner."""

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

_ASKING_S = 0.5


class RunLock:
    """An exclusive `flock` on a file, with its owner's name in it.

    The kernel releases it when the owner ends, however it ends, so a run goes on at once after a SIGKILL. It holds
    between machines on NFS (Linux), and not at all on object stores.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Raises OutputError that names the owner when a live run holds it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115  open for as long as the lock is held
        except OSError as error:
            raise OutputError(
                f"output.path {self._path.parent.parent} cannot be written: {error}. Choose another folder, or mend "
                "its permissions"
            ) from error
        if not self._taken(file):
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
    def _taken(file: IO[str]) -> bool:
        """Who asks for the holder shares the lock for a moment: one that is held for longer is another run's."""
        until = time.monotonic() + _ASKING_S
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
        """Who holds it now: a live run; None when nobody does. Changes nothing."""
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
        file.seek(0)
        try:
            owner = json.load(file)
            return f"pid {owner['pid']} on {owner['host']}, since {owner['since']}"
        except (ValueError, KeyError, TypeError):
            return "it has not written its name yet"
