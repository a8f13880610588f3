"""The comparison of two runs in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specpipe.evaluation.compare.comparison import Comparison

_MAX_FLIPS = 5
_MAX_CHARACTERS = 400  # of an answer


def print_comparison(comparison: Comparison) -> None:
    """Prints the verdict, scores and settings side by side, and the first answers whose score changed."""
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
    for flip in comparison.flips[:_MAX_FLIPS]:
        title = f"{flip.task} {flip.doc_id}, {flip.metric} ({flip.filter}): {flip.score_a:g} → {flip.score_b:g}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        for name, answers in (("A", flip.answers_a), ("B", flip.answers_b)):
            console.print(Text(f"{name}: {' | '.join(answers)[:_MAX_CHARACTERS]}"), soft_wrap=True)
    if len(comparison.flips) > _MAX_FLIPS:
        more = len(comparison.flips) - _MAX_FLIPS
        console.print(f"{more} more changed scores: use --html FILE or --json to see them", highlight=False)
