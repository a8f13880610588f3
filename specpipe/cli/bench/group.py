"""The command group `specpipe bench`."""

from __future__ import annotations

import click

from specpipe.cli.bench.engine import engine
from specpipe.cli.bench.kernels import kernels
from specpipe.cli.bench.policy import policy


@click.group(short_help="Measure kernels, the engine and the policy.")
def bench() -> None:
    """Measure speed on this machine. docs/performance.md has figures of an H200 to compare with."""


bench.add_command(engine)
bench.add_command(kernels)
bench.add_command(policy)
