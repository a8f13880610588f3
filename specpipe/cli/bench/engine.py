"""The command group `specpipe bench engine`."""

from __future__ import annotations

import click

from specpipe.cli.bench.engine_decode import decode
from specpipe.cli.bench.engine_policy import policy
from specpipe.cli.bench.engine_prefixes import prefixes
from specpipe.cli.bench.engine_replay import replay
from specpipe.cli.bench.engine_scores import scores
from specpipe.cli.bench.engine_start_up import start_up
from specpipe.cli.bench.engine_transformers import transformers


@click.group(short_help="Measure one engine without a pipeline.")
def engine() -> None:
    """Measure one engine, without Ray, datasets and output files.

    All but transformers use models of a given shape with random weights; decode, policy and prefixes with synthetic
    acceptance.

    \b
      specpipe bench engine decode --batch 1 --batch 64 --k 0 --k 2
      specpipe bench engine decode --device cpu --target small --draft small --batch 4
      specpipe bench engine policy --policy goodput --slots 16 --rows 96
      specpipe bench engine transformers
    """


engine.add_command(decode)
engine.add_command(policy)
engine.add_command(prefixes)
engine.add_command(replay)
engine.add_command(scores)
engine.add_command(start_up)
engine.add_command(transformers)
