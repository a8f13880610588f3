"""`specpipe convert`: chats to a dataset, and outputs of a run to other formats."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from specpipe.cli.options import overwrite_option

if TYPE_CHECKING:
    from specpipe.data.conversion.convert_chats import ConvertReport

_MAX_WIDTH = 80
_EXPORT_FORMATS = ("lm-eval", "openai-batch", "jsonl", "csv", "sharegpt")


@click.command(short_help="Convert chats to a dataset, or a run's outputs to another format.")
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("--to", "to", type=click.Choice(["parquet", *_EXPORT_FORMATS]), required=True, help="Format to write.")
@click.option(
    "--out", type=click.Path(), metavar="FILE", help="File to write.  [default: SRC with the format's extension]"
)
@click.option(
    "--turns",
    type=click.Choice(["first", "all"]),
    help="Turns that form the prompt: the first user turn, or all before the last answer.  [default: first for "
    "ShareGPT, all for OpenAI messages]",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="KEY",
    help="Copy a key of the records to a text column. May be given several times.",
)
@overwrite_option
def convert(
    source: str,
    to: str,
    out: str | None,
    turns: Literal["first", "all"] | None,
    keep: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Convert SRC: a file of chats to a dataset for jobs, or the output folder of a run to another format.

    --to parquet: SRC is a JSON array or JSON lines, of any size, with ShareGPT conversations or OpenAI messages. The
    output has the columns id, messages (the prompt) and answer (from SRC), and those of --keep.

    Other formats: SRC is a complete run. jsonl and csv hold all its columns; openai-batch the answers to a batch file,
    by custom_id; sharegpt the chats with the new answers; lm-eval the predictions of an evaluation.

    \b
      specpipe convert ShareGPT_V3_unfiltered.json --to parquet
      specpipe convert chats.json --to parquet --turns all --keep category --out data/chats.parquet
      specpipe convert runs/batch --to openai-batch --out answers.jsonl
    """
    if to != "parquet":
        _export(source, to, out, overwrite=overwrite, chat_options=bool(turns or keep))
        return
    from specpipe.data.conversion.convert_chats import convert_chats

    out = out or f"{os.path.splitext(source)[0]}.{to}"
    _print_report(convert_chats(source, out, take=turns, keep=list(dict.fromkeys(keep)), overwrite=overwrite))


def _export(run: str, to: str, out: str | None, *, overwrite: bool, chat_options: bool) -> None:
    """Writes the outputs of a run in the format `to`. Raises UsageError if options for chats were given."""
    from typing import cast

    from specpipe.evaluation.export.export_run import ENDINGS, ExportFormat, export

    if chat_options:
        raise click.UsageError("--turns and --keep require --to parquet; the columns of a run are named in its job")
    form = cast(ExportFormat, to)
    report = export(run, form, out or f"{run.rstrip('/')}.{ENDINGS[form]}", overwrite=overwrite)
    if to == "sharegpt":  # has no place for errors
        rows, failed = report.rows - report.failed, f", {report.failed:,} failed left out"
    else:
        rows, failed = report.rows, f", {report.failed:,} of them failed"
    click.echo(f"{rows:,} rows{failed if report.failed else ''} → {report.out}")


def _print_report(report: ConvertReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, show_header=False, width=min(_MAX_WIDTH, console.width), pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    rows: list[tuple[str, int]] = [("records", report.records), ("  written", report.written)]
    rows += [(f"  skipped: {reason}", count) for reason, count in report.skipped.most_common()]
    rows += [
        (f"turns: {speaker} → {role}" if role else f"turns: {speaker}, unknown role", count)
        for (speaker, role), count in report.turns.most_common()
    ]
    rows += [(f"records with {key!r}, left out (--keep {key})", count) for key, count in report.left_out.most_common()]
    for label, count in rows:
        table.add_row(Text(label), f"{count:,}")
    console.print(table)
    console.print(Text(f"→ {report.out}"), soft_wrap=True)
