"""matplotlib's SVG, made fit for a page: its colours are the page's own, its ids unique, its text the page's font."""

from __future__ import annotations

import re
from html import escape

INK, MUTED, GRID = "#000001", "#000002", "#000003"
SERIES = ("#000004", "#000005", "#000006", "#000007")
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{color: f"var(--series-{i})" for i, color in enumerate(SERIES, 1)},
}
"""Colours that plots are drawn in stand for variables of the page's style sheet, light or dark."""


def page_svg(drawn: str, *, name: str, alt: str) -> str:
    """The <svg> element alone. `name` is unique in the page; `alt` is what it shows, in words."""
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: (?:\w+ )*?([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\n\s*", "\n", re.sub(r"#00000\d", lambda m: _VARIABLES[m[0]], svg))
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None, "matplotlib draws with a viewBox"
    head = f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(alt)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"^<svg[^>]*>", lambda _: head, svg)
