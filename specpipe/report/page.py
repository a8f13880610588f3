"""Pages by Jinja: one template, one style sheet, everything escaped but our own plots and style."""

from __future__ import annotations

import functools
from typing import Any

import jinja2
from markupsafe import Markup


def render(**values: Any) -> str:
    """values: of templates/page.html; `sections` are layout.Section. Nothing that the page shows is loaded."""
    return _environment().get_template("page.html").render(values)


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
