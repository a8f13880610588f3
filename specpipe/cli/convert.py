"""`specpipe convert`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from specpipe.data.convert import ConvertReport

_WIDTH = 80


@click.command(short_help="Turn chat files into a dataset.")
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("--to", "to", type=click.Choice(["parquet"]), required=True, help="What to write.")
@click.option("--out", type=click.Path(), help="The file to write. Left out: beside SRC, with another ending.")
@click.option(
    "--turns",
    type=click.Choice(["first", "all"]),
    help="first: the first user turn (default for ShareGPT). all: all before the last answer (for OpenAI messages).",
)
@click.option("--keep", multiple=True, metavar="KEY", help="Keep a key of the records as a text column, any number.")
@click.option("--overwrite", is_flag=True, help="Replace the output file.")
def convert(
    source: str,
    to: str,
    out: str | None,
    turns: Literal["first", "all"] | None,
    keep: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Convert SRC, a file of chats, to a dataset that jobs read.

    SRC is one JSON array or JSON lines, of any size: ShareGPT conversations or OpenAI messages. The columns of the
    output are id, messages (the prompt) and answer (what SRC has for it), then those of --keep.

    \b
      specpipe convert ShareGPT_V3_unfiltered.json --to parquet
      specpipe convert chats.json --to parquet --turns all --keep category --out data/chats.parquet
    """
    from specpipe.data.convert import convert_chats

    out = out or f"{os.path.splitext(source)[0]}.{to}"
    _print(convert_chats(source, out, take=turns, keep=list(dict.fromkeys(keep)), overwrite=overwrite))


def _print(report: ConvertReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, show_header=False, width=min(_WIDTH, console.width), pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    rows: list[tuple[str, int]] = [("records", report.records), ("  written", report.written)]
    rows += [(f"  skipped: {reason}", count) for reason, count in report.skipped.most_common()]
    rows += [
        (f"turns: {speaker} → {role}" if role else f"turns: {speaker}, no known role", count)
        for (speaker, role), count in report.turns.most_common()
    ]
    rows += [(f"records with {key!r}, left out (--keep {key})", count) for key, count in report.left_out.most_common()]
    for label, count in rows:
        table.add_row(Text(label), f"{count:,}")
    console.print(table)
    console.print(Text(f"→ {report.out}"), soft_wrap=True)
