"""`specpipe compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specpipe.evaluation.compare.comparison import Comparison

_FLIPS = 5
_CUT = 400


@click.command(short_help="Compare two runs, or two scored evaluations.")
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option("--metric", metavar="NAME", help="Only this metric.")
@click.option("--logits", is_flag=True, help="Load the target and say where greedy outputs part for a numerical tie.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--html", "html", type=click.Path(), metavar="FILE", help="Write one self-contained page.")
@click.option("--certificate", type=click.Path(), metavar="FILE", help="Write a short text for a pull request.")
@click.pass_context
def compare(
    ctx: click.Context,
    a: str,
    b: str,
    metric: str | None,
    logits: bool,
    as_json: bool,
    html: str | None,
    certificate: str | None,
) -> None:
    """Compare B with A: each the output folder of a run, or a samples file or folder of lm-eval.

    The exit code is 1 where they differ by more than chance and rounding explain, otherwise 0.

    \b
      specpipe compare runs/plain runs/speculative --certificate certificate.md
    """
    from specpipe.cli.log_setup import quiet

    quiet(verbose=False)
    import json
    from pathlib import Path

    from specpipe.evaluation.compare.compare_paths import compare_paths
    from specpipe.evaluation.pages.certificate import certificate as markdown
    from specpipe.evaluation.pages.comparison_page import comparison_page

    comparison = compare_paths(a, b, metric=metric, logits=logits)
    if html:
        Path(html).write_text(comparison_page(comparison), encoding="utf-8")
    if certificate:
        Path(certificate).write_text(markdown(comparison), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False))
    else:
        print_comparison(comparison)
    ctx.exit(1 if comparison.differs else 0)


def print_comparison(comparison: Comparison) -> None:
    """The comparison for people."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specpipe.evaluation.pages.certificate import gaps_line, side_by_side, texts_line

    console = Console()
    style = "bold red" if comparison.differs else "bold green"
    console.print(Text(comparison.verdict, style=style), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", f"A: {comparison.a.name}", f"B: {comparison.b.name}"):
        table.add_column(Text(name), overflow="fold")
    for m in comparison.metrics:
        label = f"{m.task}\n{m.metric} ({m.filter}), n = {m.n:,}"
        table.add_row(Text(label), f"{m.mean_a:.4f} ± {m.stderr_a:.4f}", f"{m.mean_b:.4f} ± {m.stderr_b:.4f}")
        paired = f"{m.difference:+.4f} ± {m.stderr:.4f}, {m.higher_in_b} up, {m.higher_in_a} down"
        table.add_row(Text("  B - A, paired", style="dim"), "", paired)
    for row in side_by_side(comparison):
        table.add_row(*map(Text, row))
    console.print(table)
    if comparison.texts is not None:
        console.print(texts_line(comparison), highlight=False)
    if comparison.gaps:
        console.print(gaps_line(comparison), highlight=False)
    for flip in comparison.flips[:_FLIPS]:
        title = f"{flip.task} {flip.doc_id}, {flip.metric} ({flip.filter}): {flip.score_a:g} → {flip.score_b:g}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        for name, answers in (("A", flip.answers_a), ("B", flip.answers_b)):
            console.print(Text(f"{name}: {' | '.join(answers)[:_CUT]}"), soft_wrap=True)
    if len(comparison.flips) > _FLIPS:
        console.print(f"{len(comparison.flips) - _FLIPS} more flips: --html FILE or --json", highlight=False)
