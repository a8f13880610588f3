"""HTML pages by Jinja: one template and one style sheet. Everything is escaped except plots and style."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from specpipe.report.elements import ReportSection


def render(
    *,
    title: str,
    sections: Sequence[ReportSection],
    state: str = "",
    tone: str = "",
    verdict: str = "",
    tiles: Sequence[tuple[str, str, str]] = (),
    footer: str = "",
) -> str:
    """Returns an HTML page that loads no other resources.

    Args:
        title: Title and main heading.
        sections: Sections in order.
        state: Word behind the title, in the colour of `tone`.
        tone: good, bad or live.
        verdict: Sentence below the title, in the colour of `tone`.
        tiles: The most important figures, as (name, value, remark).
        footer: Text at the end.
    """
    return _environment().get_template("page.html").render(locals())


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("specpipe.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = Markup  # for plots only: their text was escaped when they were drawn
    return environment
