"""Log formats: one line of JSON per record, or plain text.

Control characters are escaped, so that text from rows and models cannot forge records.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from specpipe.errors import JobError

FORMAT_VARIABLE = "SPECPIPE_LOG"
"""Environment variable with the log format: json or text."""
_MAX_CHARACTERS = 8000  # of a message; log collectors split longer lines
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_fields: ContextVar[Mapping[str, object] | None] = ContextVar("log fields", default=None)


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Adds fields (run, worker, shard, attempt) to every record that is logged inside the block."""
    token = _fields.set({**(_fields.get() or {}), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def with_fields(**fields: object) -> dict[str, dict[str, object]]:
    """Returns the `extra` of one logging call: `log.warning("…", extra=with_fields(shard=3))`."""
    return {"fields": fields}


def printable(text: str) -> str:
    """Returns text with control characters, such as terminal escapes, spelt out. Line breaks and tabs stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class TextFormatter(logging.Formatter):
    """Time, level and message. Further lines of a message are indented, so that none looks like another record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        return printable(super().format(record)).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One line of ASCII per record: time (UTC), level, logger, message, host, pid and the current fields."""

    def __init__(self, **fields: object) -> None:
        """`fields` are added to every record of this process."""
        super().__init__()
        self._own = {"host": socket.gethostname(), "pid": os.getpid(), **fields}

    def format(self, record: logging.LogRecord) -> str:
        """Returns a record as one line of JSON."""
        message = record.getMessage()
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message if len(message) <= _MAX_CHARACTERS else f"{message[: _MAX_CHARACTERS - 1]}…",
            **self._own,
            **(_fields.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)[-_MAX_CHARACTERS:]
        return json.dumps(entry, default=str)


def wants_json(flag: bool) -> bool:
    """Returns True if the flag or SPECPIPE_LOG selects JSON. Raises JobError for an unknown value of SPECPIPE_LOG."""
    value = os.environ.get(FORMAT_VARIABLE, "text")
    if value not in ("json", "text"):
        raise JobError(f"{FORMAT_VARIABLE} is {value!r}; expected json or text")
    return flag or value == "json"


def log_as_json(**fields: object) -> None:
    """Sends the log of this process, from level INFO on, to stderr as JSON. Called in worker processes."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(**fields))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("specpipe").setLevel(logging.INFO)
