"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

LOG_JSON = "specpipe.log_json"
"""Key of `click.Context.meta`: whether logs, and errors that end the command, are written as JSON."""


def _store_log_json(ctx: click.Context, parameter: click.Parameter, flag: bool) -> bool:
    from specpipe.pipeline.logs import wants_json

    ctx.meta[LOG_JSON] = wants_json(flag)
    return bool(ctx.meta[LOG_JSON])


def log_json_option(command: Command) -> Command:
    """Adds --log-json, the parameter `log_json`."""
    text = "Write logs, progress and results as one JSON object per line (also: SPECPIPE_LOG=json)."
    return click.option("--log-json", is_flag=True, callback=_store_log_json, help=text)(command)


def set_option(command: Command) -> Command:
    """Adds --set, the parameter `overrides`."""
    text = "Override a field of the job. May be given several times."
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)(command)


def verbose_option(command: Command) -> Command:
    """Adds -v and --verbose, the parameter `verbose`."""
    return click.option("-v", "--verbose", is_flag=True, help="Log what the driver and the workers do.")(command)


def json_option(text: str) -> Callable[[Command], Command]:
    """Returns --json, the parameter `as_json`, with this help text."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def overwrite_option(command: Command) -> Command:
    """Adds --overwrite."""
    return click.option("--overwrite", is_flag=True, help="Replace files that exist.")(command)
