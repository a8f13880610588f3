"""The live display of a run: lines on a pipe, a bar on a terminal."""

import dataclasses
import io
import re

from rich.console import Console

from specpipe.cli.run_display import RunDisplay, duration, tokens
from specpipe.pipeline.driver.progress import Progress

BASE = Progress(
    elapsed_s=61.0, total_rows=2000, done_rows=500, failed_rows=0, total_shards=10, published_shards=2,
    failed_shards=0, workers=1, starting=0, unplaced=0, running=16, waiting=40, k=2.5, queue_depth=812.0,
    acceptance_length=2.613, tokens_per_s=1832.4, eta_s=187.0, draining=False,
    input_tokens=9_999, output_tokens=1_249_999,
)  # fmt: skip


def shown(terminal: bool, *snapshots: Progress) -> str:
    out = io.StringIO()
    with RunDisplay("sharegpt", Console(file=out, width=80, force_terminal=terminal)) as display:
        for snapshot in snapshots:
            display.show(snapshot)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())


def test_pipe_gets_at_most_one_line_per_interval() -> None:
    text = shown(False, BASE, BASE, BASE)
    assert text.count("\n") == 1
    assert "[1:01] 500/2000 rows · 1,832 tok/s · 9,999 in, 1.2M out · acceptance length 2.61 · K 2.5 · " in text
    assert "queue depth 812 · ETA 3:07" in text


def test_low_rates_have_two_digits() -> None:
    texts = [shown(False, dataclasses.replace(BASE, tokens_per_s=rate)) for rate in (0.0, 0.434, 5.71, 9.96, 1832.4)]
    assert [re.search(r"rows · ([\d.,]+) tok/s", text)[1] for text in texts] == ["0", "0.43", "5.7", "10", "1,832"]


def test_terminal_gets_a_bar_within_its_width() -> None:
    text = shown(True, BASE)
    assert "500/2,000 rows  25%" in text
    assert max(len(line) for line in text.replace("\r", "\n").splitlines()) <= 80


def test_new_worker_is_shown_as_starting_until_placement_is_late() -> None:
    waiting = dataclasses.replace(BASE, workers=0, starting=1, unplaced=2, elapsed_s=0.0)
    assert "500/2000 rows · 3 starting: loading weights, warming up\n" in shown(False, waiting)
    late = dataclasses.replace(waiting, elapsed_s=5.0)
    assert "1 starting: loading weights, warming up, 2 waiting for a process of Ray or room in the cluster\n" in shown(
        False, late
    )


def test_time_before_the_first_token_says_what_runs() -> None:
    first = dataclasses.replace(BASE, done_rows=0, input_tokens=0, output_tokens=0, tokens_per_s=0.0)
    assert "0/2000 rows · prefill of the first 16 rows\n" in shown(False, first)
    assert "tok/s" in shown(False, dataclasses.replace(first, output_tokens=1))


def test_failures_and_draining_are_shown_when_present() -> None:
    failing = dataclasses.replace(
        BASE, failed_rows=3, failed_shards=1, workers=4, starting=2, unplaced=3, draining=True
    )
    text = shown(False, failing)
    for words in (
        "3 failed rows",
        "1 failed shard",
        "4 workers (2 starting: loading weights, warming up, 3 waiting for a process of Ray or room in the cluster)",
        "Ctrl-C again",
    ):
        assert words in text
    assert "failed" not in shown(False, BASE)


def test_tokens_have_a_unit_from_ten_thousand_on() -> None:
    texts = [tokens(count) for count in (0, 9_999, 10_000, 999_949, 999_951, 2_000_000_000_000)]
    assert texts == ["0", "9,999", "10.0k", "999.9k", "1.0M", "2000.0G"]


def test_durations_are_formatted_like_a_clock() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3723)] == ["0 s", "59 s", "1:01", "1:02:03"]
