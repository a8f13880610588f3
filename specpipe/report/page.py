"""Pages by Jinja: one template, one style sheet, everything escaped but our own plots and style."""

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
    """HTML that loads nothing.

    state: a word behind the title; verdict: a sentence below it, both in the colour of `tone` (good, bad, live). tiles:
    the figures that one looks for first, as name, value and remark.
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
    environment.filters["drawn"] = Markup  # plots alone: their text was escaped when they were drawn
    return environment
