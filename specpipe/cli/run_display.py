"""Progress of a run: a live display on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specpipe.pipeline.driver.progress import Progress

_LINE_INTERVAL_S = 5.0
_PLACEMENT_S = 5.0  # Ray needs less than this to place a worker if the cluster has room


def duration(seconds: float) -> str:
    """Returns a duration as text: 12 s, 3:07 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(per_second: float) -> str:
    """Returns a rate as text, with two digits below 10: 1,832, 5.7 or 0.43."""
    return f"{per_second:,.0f}" if per_second >= 9.95 or not per_second else f"{per_second:.2g}"


def tokens(count: int) -> str:
    """Returns a number of tokens as text, with a unit from 10,000 on: 9,999, 12.3k, 4.6M."""
    if count < 10_000:
        return f"{count:,}"
    amount = count / 1e3
    for unit in "kMG":
        if amount < 999.95 or unit == "G":
            break
        amount /= 1e3
    return f"{amount:.1f}{unit}"


class RunDisplay:
    """Shows Progress snapshots on stdout while its block runs; prints nothing before the first one."""

    def __init__(self, name: str, console: Console | None = None, *, interruptible: bool = True) -> None:
        """`interruptible`: the run is in this process, so that Ctrl-C stops it."""
        self._name, self._interruptible = name, interruptible
        self._console = console or Console()
        self._live: Live | None = None
        self._next_line = 0.0

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def announce(self, line: str) -> None:
        """Prints one line of text."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def show(self, progress: Progress) -> None:
        """Updates the live display, or prints a line if the last one is some seconds old."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4, transient=True)
                self._live.start()
            self._live.update(self._panel(progress))
        elif (now := time.monotonic()) >= self._next_line:
            self._next_line = now + _LINE_INTERVAL_S
            self.announce(self._line(progress))

    def _panel(self, progress: Progress) -> Group:
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(justify="right", no_wrap=True)
        share = progress.done_rows / max(1, progress.total_rows)
        head.add_row(
            Text(self._name, style="bold"),
            ProgressBar(total=max(1, progress.total_rows), completed=progress.done_rows),
            f"{progress.done_rows:,}/{progress.total_rows:,} rows {share:4.0%}",
        )
        return Group(head, Text(" · ".join(_facts(progress, self._interruptible)), style="dim"))

    def _line(self, progress: Progress) -> str:
        rows = f"{progress.done_rows}/{progress.total_rows} rows"
        return f"[{duration(progress.elapsed_s)}] {rows} · {' · '.join(_facts(progress, self._interruptible))}"


def _facts(progress: Progress, interruptible: bool) -> list[str]:
    if not progress.workers and (waiting := _not_ready(progress)):
        return [waiting]
    if not progress.output_tokens and not progress.done_rows and progress.running:
        return [f"prefill of the first {_count(progress.running, 'row')}"]
    facts = [
        f"{rate(progress.tokens_per_s)} tok/s",
        f"{tokens(progress.input_tokens)} in, {tokens(progress.output_tokens)} out",
        f"acceptance length {progress.acceptance_length:.2f}",
        f"K {progress.k:.1f}",
        f"queue depth {progress.queue_depth:,.0f}",
    ]
    if progress.workers != 1 or progress.starting or progress.unplaced:
        waiting = _not_ready(progress)
        facts.append(f"{progress.workers} workers" + (f" ({waiting})" if waiting else ""))
    if progress.failed_rows:
        facts.append(_count(progress.failed_rows, "failed row"))
    if progress.failed_shards:
        facts.append(_count(progress.failed_shards, "failed shard"))
    if progress.draining:
        facts.append("finishing running shards" + (", Ctrl-C again stops now" if interruptible else ""))
    elif progress.eta_s is not None and progress.done_rows < progress.total_rows:
        facts.append(f"ETA {duration(progress.eta_s)}")
    return facts


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _not_ready(progress: Progress) -> str:
    """Returns the number of workers that load models, and of those that wait for resources of the cluster."""
    waiting = progress.unplaced if progress.elapsed_s >= _PLACEMENT_S else 0
    starting = progress.starting + progress.unplaced - waiting
    parts = [
        f"{starting} starting: loading weights, warming up" if starting else "",
        f"{waiting} waiting for a process of Ray or room in the cluster" if waiting else "",
    ]
    return ", ".join(part for part in parts if part)
