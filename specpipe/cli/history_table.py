"""A history of evaluations in the terminal: one curve for each score, and the latest results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MAX_ROWS = 20


def print_history(path: str, table: Any) -> None:
    """Prints a table with the schema of the evaluation history, read from `path`."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specpipe.evaluation.pages.history_page import history_series, sparkline

    console = Console()
    for title, curves in history_series(table):
        console.print(Text(title, style="bold"), soft_wrap=True)
        for curve in curves:
            last, bars = curve.values[-1], sparkline(curve.values)
            console.print(f"  {curve.name:<18} {last:>9.4f}  {bars}", highlight=False, soft_wrap=True)
    latest = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("time", "task", "B - A, paired", "acceptance", "finding"):
        latest.add_column(name, overflow="fold")
    for row in table.to_pylist()[-_MAX_ROWS:]:
        latest.add_row(
            row["time"].strftime("%Y-%m-%d %H:%M"),
            Text(f"{row['task']} ({row['filter']})"),
            f"{row['difference']:+.4f} ± {row['difference_stderr']:.4f}",
            f"{row['acceptance_length']:.2f}",
            row["finding"],
        )
    console.print(latest)
    if (page := Path(path).with_suffix(".html")).exists():
        console.print(Text(f"plots: {page}"), soft_wrap=True)
