"""Tests of log records: their fields, and text that tries to forge one."""

import json
import logging
import sys
import threading

import pytest

from specpipe.errors import JobError
from specpipe.pipeline.logs import JsonFormatter, TextFormatter, log_fields, printable, wants_json, with_fields

FORGED = 'a row"}\n{"level": "critical", "message": "forged"}\r\x1b[2J\x9b31m\u2028end'


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("specpipe.x").makeRecord(
        "specpipe.x", logging.WARNING, __file__, 1, "%s", (message,), None, extra=extra or None
    )


def entry(message: str, formatter: JsonFormatter | None = None, **extra: object) -> dict[str, object]:
    line = (formatter or JsonFormatter()).format(record(message, **extra))
    assert len(line.splitlines()) == 1 and line.isascii() and line.isprintable()
    return json.loads(line)


def test_json_record_has_host_pid_and_fields() -> None:
    formatter = JsonFormatter(run="job-01234567", worker="worker-0")
    with log_fields(shard=3, attempt=1), log_fields(attempt=2):
        said = entry("fine", formatter, **with_fields(rows=7))
    assert said.items() >= {
        "level": "warning", "logger": "specpipe.x", "message": "fine", "run": "job-01234567", "worker": "worker-0",
        "shard": 3, "attempt": 2, "rows": 7,
    }.items()  # fmt: skip
    assert str(said["time"]).endswith("+00:00")
    assert "shard" not in entry("later", formatter)


def test_log_fields_are_separate_per_thread() -> None:
    seen: dict[int, object] = {}
    together = threading.Barrier(2)

    def work(shard: int) -> None:
        with log_fields(shard=shard):
            together.wait(10)
            seen[shard] = entry("working")["shard"]
            together.wait(10)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == {1: 1, 2: 2}


def test_text_cannot_forge_a_record() -> None:
    assert entry(FORGED)["message"] == FORGED
    text = TextFormatter().format(record(FORGED))
    assert "\x1b" not in text and "\x9b" not in text and "\r" not in text
    assert [line for line in text.split("\n") if not line.startswith("    ")] == [text.split("\n")[0]]


def test_long_messages_and_traces_are_cut() -> None:
    assert len(str(entry("x" * 10**6)["message"])) == 8000
    try:
        raise ValueError("y" * 10**6)
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()
    assert len(json.loads(JsonFormatter().format(failed))["exception"]) == 8000


def test_line_breaks_and_tabs_stay_in_text_logs() -> None:
    assert printable("a\tb\nc\x07") == "a\tb\nc\\x07"


@pytest.mark.parametrize(
    ("flag", "value", "expected"), [(True, "text", True), (False, "json", True), (False, None, False)]
)
def test_flag_or_environment_selects_json(
    monkeypatch: pytest.MonkeyPatch, flag: bool, value: str | None, expected: int
) -> None:
    monkeypatch.delenv("SPECPIPE_LOG", raising=False)
    if value is not None:
        monkeypatch.setenv("SPECPIPE_LOG", value)
    assert wants_json(flag) == bool(expected)


def test_unknown_log_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPIPE_LOG", "yaml")
    with pytest.raises(JobError, match="SPECPIPE_LOG is 'yaml'; expected json or text"):
        wants_json(False)
