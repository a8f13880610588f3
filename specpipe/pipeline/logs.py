"""Logs: a line of JSON each, or plain text; neither can be forged by what a row or a model says."""

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

VARIABLE = "SPECPIPE_LOG"
_LONGEST = 8000  # characters of a message: collectors split longer lines
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_fields: ContextVar[Mapping[str, object] | None] = ContextVar("log fields", default=None)


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """What is logged inside carries these fields too: run, worker, shard, attempt."""
    token = _fields.set({**(_fields.get() or {}), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def with_fields(**fields: object) -> dict[str, dict[str, object]]:
    """For one call: `log.warning("…", extra=with_fields(shard=3))`."""
    return {"fields": fields}


def printable(text: str) -> str:
    """Terminal escapes and other control characters spelt out; line breaks and tabs stay."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class TextFormatter(logging.Formatter):
    """Time, level, message. Further lines of a message are indented, so that none passes for a record of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One line of ASCII a record: time (UTC), level, logger, message, host, pid, and the fields that are known."""

    def __init__(self, **fields: object) -> None:
        """`fields`: of every record of this process."""
        super().__init__()
        self._own = {"host": socket.gethostname(), "pid": os.getpid(), **fields}

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…",
            **self._own,
            **(_fields.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)[-_LONGEST:]
        return json.dumps(entry, default=str)


def wants_json(flag: bool) -> bool:
    """Whether a flag or the environment asks for JSON. Raises JobError for another value of SPECPIPE_LOG."""
    value = os.environ.get(VARIABLE, "text")
    if value not in ("json", "text"):
        raise JobError(f"{VARIABLE} is {value!r}; expected json or text")
    return flag or value == "json"


def log_as_json(**fields: object) -> None:
    """This process's log goes to stderr as JSON, from information on: for a worker."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(**fields))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("specpipe").setLevel(logging.INFO)
