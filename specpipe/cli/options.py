"""`--log-json`, the same for every command that runs jobs."""

from __future__ import annotations

from typing import Any

import click

AS_JSON = "specpipe.log_json"
"""In click's `meta`: errors that end the command are records of the log too."""


def _remember(ctx: click.Context, parameter: click.Parameter, flag: bool) -> bool:
    from specpipe.pipeline.logs import wants_json

    ctx.meta[AS_JSON] = wants_json(flag)
    return bool(ctx.meta[AS_JSON])


def log_option(command: Any) -> Any:
    """The option, as the parameter `log_json`."""
    about = "Log one line of JSON a record, progress and results too (or SPECPIPE_LOG=json)."
    return click.option("--log-json", is_flag=True, callback=_remember, help=about)(command)
