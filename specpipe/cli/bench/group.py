"""`specpipe bench`: measurements that a user can repeat."""

from __future__ import annotations

import click

from specpipe.cli.bench.engine_decode import engine
from specpipe.cli.bench.kernels import kernels
from specpipe.cli.bench.policy import policy


@click.group(short_help="Measure kernels, the engine and the policy on this machine.")
def bench() -> None:
    """Measure on this machine what docs/performance.md says of another."""


bench.add_command(engine)
bench.add_command(kernels)
bench.add_command(policy)
