"""Conversion of matplotlib's SVG for a page: colours from the style sheet, unique ids, the page's font."""

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
"""Variables of the style sheet, which has a light and a dark scheme, by the colour that plots are drawn in."""


def page_svg(drawn: str, *, name: str, alt: str) -> str:
    """Returns the <svg> element. `name` is unique in the page; `alt` describes the plot in words."""
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in referenced else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: (?:\w+ )*?([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\n\s*", "\n", re.sub(r"#00000\d", lambda m: _VARIABLES[m[0]], svg))
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None, "matplotlib's SVG has a viewBox"
    head = f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(alt)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"^<svg[^>]*>", lambda _: head, svg)
