"""Certificate of a comparison: a short Markdown text with settings, scores and verdict, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specpipe.evaluation.compare.comparison import Comparison

_MEASURED = (
    ("acceptance length", "spec_decode_acceptance_length", "{:.2f}"),
    ("acceptance rate", "spec_decode_acceptance_rate", "{:.1%}"),
    ("output tokens/s", "output_throughput", "{:,.0f}"),
    ("time per output token, mean", "mean_tpot_ms", "{:,.2f} ms"),
    ("time", "duration_s", "{:,.1f} s"),
    ("output tokens", "total_output_tokens", "{:,}"),
    ("scored tokens", "total_scored_tokens", "{:,}"),
    ("scored tokens/s", "scored_throughput", "{:,.0f}"),
    ("failed rows", "failed", "{:,}"),
)

_ROWS = 20  # differing rows that the certificate names
_FORMATS = ("model.dtype", "model.quantize", "model.kv_dtype", "model.target_format")


def side_by_side(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yields (name, A, B) for settings that differ, then for measurements."""
    a, b = comparison.a, comparison.b
    for name in dict.fromkeys([*a.settings, *b.settings]):
        if a.settings.get(name) != b.settings.get(name) or name in ("model.target", "sampling.temperature"):
            yield name, _text(a.settings.get(name)), _text(b.settings.get(name))
    for label, name, form in _MEASURED:
        if name in a.measured or name in b.measured:
            yield label, _form(form, a.measured.get(name)), _form(form, b.measured.get(name))


def certificate(comparison: Comparison, page: str = "") -> str:
    """Returns the certificate as Markdown. page: address of the comparison page, which rows are linked to."""
    lines = [f"### {_title(comparison)}", "", f"**{comparison.verdict}**", ""]
    lines += ["| | A | B |", "|---|---|---|", f"| | `{comparison.a.name}` | `{comparison.b.name}` |"]
    for m in comparison.metrics:
        lines.append(
            f"| {m.task}, {m.metric} ({m.filter}), n = {m.n:,} | {m.mean_a:.4f} ± {m.stderr_a:.4f} "
            f"| {m.mean_b:.4f} ± {m.stderr_b:.4f} |"
        )
    lines += [f"| {name} | {left} | {right} |" for name, left, right in side_by_side(comparison)]
    lines.append("")
    for m in comparison.metrics:
        lines.append(
            f"- {m.task}, {m.metric} ({m.filter}): B - A = {m.difference:+.4f} ± {m.stderr:.4f} (paired); "
            f"{m.higher_in_b} up, {m.higher_in_a} down; {m.verdict}"
        )
    if comparison.texts is not None:
        lines.append(f"- {texts_line(comparison)}")
        if differing := comparison.texts.divergences[:_ROWS]:
            names = [f"[{d.row}]({page}#row-{d.row})" if page else f"{d.row}" for d in differing]
            more = len(comparison.texts.positions) - len(names)
            lines.append(f"- rows that differ: {', '.join(names)}" + (f" and {more:,} more" if more else ""))
    if comparison.gaps:
        lines.append(f"- {gaps_line(comparison)}")
    if versions := comparison.b.measured.get("versions"):
        lines.append("- " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return "\n".join(lines) + "\n"


def _title(comparison: Comparison) -> str:
    """Returns the kind of the comparison, by the settings that differ."""
    a, b = comparison.a.settings, comparison.b.settings
    differing = {name for name in {*a, *b} if a.get(name) != b.get(name)}
    if differing & {"model.target", "model.target_revision"}:
        return "Two models"
    if differing & {*_FORMATS}:
        return "One model in two number formats"
    if any(name.startswith("sampling.") for name in differing) or "speculation.policy" not in differing:
        return "Two runs of one model"
    return "Speculation against plain decoding"


def texts_line(comparison: Comparison) -> str:
    """Returns a sentence with the number of equal outputs. The comparison must have texts."""
    texts = comparison.texts
    assert texts is not None
    line = f"{texts.same_text:,} of {texts.rows:,} outputs are the same text ({texts.exact_match_rate:.2%})"
    if texts.positions:
        ordered = sorted(texts.positions)
        line += (
            f"; the others differ after {ordered[len(ordered) // 2]:,} tokens (median; the first after {ordered[0]:,})"
        )
    if texts.scores:
        line += (
            f"; {texts.same_scores:,} of {texts.scores:,} log-probabilities are the same up to rounding (largest "
            f"difference {texts.largest_difference:.2g}), {texts.greedy_changed:,} greedy ones changed"
        )
    return line + (f"; {texts.failed:,} rows failed" if texts.failed else "")


def gaps_line(comparison: Comparison) -> str:
    """Returns a sentence about the logits at first differing positions. The comparison must have gaps."""
    ties = sum(gap.is_tie for gap in comparison.gaps)
    largest = max(gap.lost for gap in comparison.gaps)
    return (
        f"logits at {len(comparison.gaps)} first differing positions: {ties} numerical ties, "
        f"{len(comparison.gaps) - ties} real differences (largest distance from the best token {largest:.2g})"
    )


def _text(value: Any) -> str:
    return "—" if value is None else str(value)


def _form(form: str, value: Any) -> str:
    return "—" if value is None else form.format(value)
