"""Measurements of a page in a browser: contrast, sizes, overflow, requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MEASURE = """() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  document.querySelectorAll('details').forEach(e => e.open = true);
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.closest('svg');
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(e))];
    const box = e.getBoundingClientRect();
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    texts.push({text: text.slice(0, 40), contrast: (Math.max(a, b) + .05) / (Math.min(a, b) + .05),
      size: parseFloat(style.fontSize) * scale, out: svg && (box.left < svg.getBoundingClientRect().left - 1
      || box.right > svg.getBoundingClientRect().right + 1)});
  }
  return {texts, wide: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor};
}"""


@dataclass(frozen=True, kw_only=True)
class PageLayout:
    """Measurements of one page at one width and colour scheme, with everything expanded."""

    requests: list[str]
    """URLs requested besides the page."""
    console_messages: list[str]
    """Messages and errors in the browser's console."""
    overflow: int
    """Pixels by which the page is wider than the window."""
    texts: list[dict[str, Any]]
    """Text, contrast to its background, size in pixels, and whether it is `out` of its plot."""
    background: str


def measure_page(browser: Any, page_file: Path, *, width: int, scheme: str, picture: Path | None = None) -> PageLayout:
    """Opens a page in playwright's `browser` and measures it. `picture`: file for a screenshot, before expanding."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        page = context.new_page()
        requests: list[str] = []
        console_messages: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: console_messages.append(message.text))
        page.on("pageerror", lambda error: console_messages.append(str(error)))
        page.goto(page_file.as_uri())
        if picture is not None:
            page.screenshot(path=str(picture), full_page=True)
        measured = page.evaluate(_MEASURE)
        own = page_file.as_uri()
        return PageLayout(
            requests=[url for url in requests if url != own and not url.startswith("data:")],
            console_messages=console_messages,
            overflow=measured["wide"] - measured["view"],
            texts=measured["texts"],
            background=measured["background"],
        )
    finally:
        context.close()


def assert_readable(layout: PageLayout, *, min_size: float = 9.0) -> None:
    """Asserts WCAG AA contrast (4.5 to 1), no overflow, no cut text, and no requests."""
    assert layout.requests == []
    assert layout.console_messages == []
    assert layout.overflow <= 0
    assert len(layout.texts) > 10
    assert [text for text in layout.texts if text["contrast"] < 4.5] == []
    assert [text for text in layout.texts if text["size"] < min_size] == []
    assert [text for text in layout.texts if text["out"]] == []
