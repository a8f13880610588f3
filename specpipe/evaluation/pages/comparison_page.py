"""Comparison page: one self-contained HTML file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from specpipe.evaluation.compare.comparison import Comparison, Flip
from specpipe.evaluation.pages.certificate import gaps_line, side_by_side, texts_line
from specpipe.report.elements import Marked, Pair, ReportSection, Table
from specpipe.report.page import render

_SHOWN = 50


def comparison_page(comparison: Comparison) -> str:
    """Returns the page as HTML. It loads no external resources."""
    return render(
        title=f"{comparison.a.name} and {comparison.b.name}",
        tone="bad" if comparison.differs else "good",
        verdict=comparison.verdict,
        sections=[
            _settings(comparison),
            *_links(comparison),
            *_scores(comparison),
            *_texts(comparison),
            *_flips(comparison),
        ],
    )


def _settings(comparison: Comparison) -> ReportSection:
    head = ("", f"A: {comparison.a.name}", f"B: {comparison.b.name}")
    return ReportSection(title="Side by side", tables=[Table(head=head, rows=[*side_by_side(comparison)])])


def _links(comparison: Comparison) -> Iterator[ReportSection]:
    """Yields the section with links to the texts of rows that differ, and of documents whose scores changed."""
    texts = () if comparison.texts is None else comparison.texts.divergences[:_SHOWN]
    links = [(f"row-{row.row}", f"row {row.row} ({row.request_id})") for row in texts]
    links += [(f"score-{i}", f"{flip.task} {flip.doc_id}") for i, flip in enumerate(comparison.flips[:_SHOWN])]
    if links:
        yield ReportSection(title="Rows that differ", links=links)


def _scores(comparison: Comparison) -> Iterator[ReportSection]:
    if not comparison.metrics:
        return
    rows = [
        (
            m.task,
            f"{m.metric} ({m.filter})",
            f"{m.n:,}",
            f"{m.mean_a:.4f} ± {m.stderr_a:.4f}",
            f"{m.mean_b:.4f} ± {m.stderr_b:.4f}",
            f"{m.difference:+.4f} ± {m.stderr:.4f}",
            f"{m.higher_in_b} / {m.higher_in_a}",
            m.verdict,
        )
        for m in comparison.metrics
    ]
    head = ("task", "metric", "n", "A", "B", "B - A, paired", "up / down", "verdict")
    yield ReportSection(title="Scores", tables=[Table(head=head, rows=rows)])


def _texts(comparison: Comparison) -> Iterator[ReportSection]:
    if comparison.texts is None:
        return
    gaps = {gap.row: gap for gap in comparison.gaps}
    pairs = []
    for divergence in comparison.texts.divergences[:_SHOWN]:
        title = f"row {divergence.row}, differs after {divergence.position} tokens"
        if gap := gaps.get(divergence.row):
            kind = "numerical tie" if gap.is_tie else "real difference"
            title += f": {kind} (top-2 logit gap {gap.gap:.2g}, tolerance {gap.tolerance:.2g})"
        left, right = _marked(divergence.text_a, divergence.text_b)
        pairs.append(Pair(title=title, above=divergence.prompt, left=left, right=right, anchor=f"row-{divergence.row}"))
    intro = texts_line(comparison) + (f" {gaps_line(comparison)}" if comparison.gaps else "")
    yield ReportSection(title="Outputs", intro=intro, pairs=pairs, note=_note(len(comparison.texts.divergences)))


def _flips(comparison: Comparison) -> Iterator[ReportSection]:
    if comparison.flips:
        pairs = [_flip(flip, f"score-{i}") for i, flip in enumerate(comparison.flips[:_SHOWN])]
        yield ReportSection(title="Scores that changed", pairs=pairs, note=_note(len(comparison.flips)))


def _flip(flip: Flip, anchor: str) -> Pair:
    left, right = _marked("\n---\n".join(flip.answers_a), "\n---\n".join(flip.answers_b))
    return Pair(
        title=f"{flip.task} {flip.doc_id}, {flip.metric} ({flip.filter}): {flip.score_a:g} → {flip.score_b:g}",
        above=flip.prompt,
        note=f"target: {flip.target}",
        left=left,
        right=right,
        anchor=anchor,
    )


def _note(count: int) -> str:
    return f"The first {_SHOWN} of {count} or more." if count > _SHOWN else ""


def _marked(a: str, b: str) -> tuple[Marked, Marked]:
    """Splits two texts into pieces and marks the words that differ."""
    left, right = a.split(" "), b.split(" ")
    marked: tuple[list[tuple[str, bool]], list[tuple[str, bool]]] = ([], [])
    for kind, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for out, words in zip(marked, (left[i:j], right[k:m]), strict=True):
            if words:
                out += [(" ".join(words), kind != "equal"), (" ", False)]
    return marked
