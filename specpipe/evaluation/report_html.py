"""A comparison as one self-contained HTML page."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterable, Iterator, Sequence

from specpipe.evaluation.certificate import gaps_line, side_by_side, texts_line
from specpipe.evaluation.comparison import Comparison

_SHOWN = 50
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left;
vertical-align:top}.verdict{padding:.8em 1em;border-left:6px solid #2a7;background:#f3faf6;font-weight:600}
.verdict.bad{border-color:#c33;background:#fdf3f3}
pre{white-space:pre-wrap;margin:0;font:13px/1.45 ui-monospace,monospace}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1em}details{border-top:1px solid #ddd;padding:.5em 0}
mark{background:#ffe2a8}.note{color:#666}
"""


def report_html(comparison: Comparison) -> str:
    """The page; nothing in it is loaded from elsewhere."""
    return "".join(_page(comparison))


def _page(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.a.name, comparison.b.name
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_e(a)} and {_e(b)}</title>'
    bad = " bad" if comparison.differs else ""
    yield f'<style>{_STYLE}</style><h1>Comparison</h1><p class="verdict{bad}">{_e(comparison.verdict)}</p>'
    yield _table(("", f"A: {a}", f"B: {b}"), side_by_side(comparison))
    if comparison.metrics:
        yield "<h2>Scores</h2>" + _table(
            ("task", "metric", "n", "A", "B", "B - A, paired", "up / down", "verdict"),
            (
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
            ),
        )
    yield from _texts(comparison)
    if comparison.flips:
        yield f"<h2>Scores that changed</h2>{_note(len(comparison.flips))}"
        for flip in comparison.flips[:_SHOWN]:
            title = f"{flip.task} {flip.doc_id}, {flip.metric} ({flip.filter}): {flip.score_a:g} → {flip.score_b:g}"
            yield f"<details><summary>{_e(title)}</summary><pre class=note>{_e(flip.prompt)}</pre>"
            yield f"<p>target: {_e(flip.target)}</p>"
            yield _pair("\n---\n".join(flip.answers_a), "\n---\n".join(flip.answers_b)) + "</details>"
    yield "</html>\n"


def _texts(comparison: Comparison) -> Iterator[str]:
    if comparison.texts is None:
        return
    yield f"<h2>Outputs</h2><p>{_e(texts_line(comparison))}</p>"
    if comparison.gaps:
        yield f"<p>{_e(gaps_line(comparison))}</p>"
    gaps = {gap.row: gap for gap in comparison.gaps}
    if comparison.texts.divergences:
        yield _note(len(comparison.texts.divergences))
    for divergence in comparison.texts.divergences[:_SHOWN]:
        title = f"row {divergence.row}, parts after {divergence.position} tokens"
        if gap := gaps.get(divergence.row):
            kind = "numerical tie" if gap.is_tie else "real difference"
            title += f": {kind} (top-2 logit gap {gap.gap:.2g}, tolerance {gap.tolerance:.2g})"
        yield f"<details><summary>{_e(title)}</summary>{_pair(divergence.text_a, divergence.text_b)}</details>"


def _note(count: int) -> str:
    return f'<p class="note">The first {_SHOWN} of {count} or more.</p>' if count > _SHOWN else ""


def _pair(a: str, b: str) -> str:
    """Two texts beside each other; words that differ are marked."""
    left, right = a.split(" "), b.split(" ")
    marked: tuple[list[str], list[str]] = ([], [])
    for kind, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for out, words in zip(marked, (left[i:j], right[k:m]), strict=True):
            text = _e(" ".join(words))
            if text:
                out.append(text if kind == "equal" else f"<mark>{text}</mark>")
    return f'<div class="pair"><pre>{" ".join(marked[0])}</pre><pre>{" ".join(marked[1])}</pre></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{_e(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{_e(cell)}</th>' for cell in head)}</tr>{body}</table>"


def _e(text: str) -> str:
    return html.escape(text)
