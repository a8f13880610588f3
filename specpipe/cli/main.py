"""`specpipe`: the command group, and how errors and interrupts end it."""

from __future__ import annotations

import logging
from typing import Any

import click

from specpipe import __version__
from specpipe.cli.bench.group import bench
from specpipe.cli.compare import compare
from specpipe.cli.convert import convert
from specpipe.cli.doctor import doctor
from specpipe.cli.eval import evaluate
from specpipe.cli.init import init
from specpipe.cli.options import AS_JSON
from specpipe.cli.run import run
from specpipe.cli.show import show
from specpipe.cli.verify import verify
from specpipe.errors import EXIT_INTERRUPTED, SpecpipeError
from specpipe.pipeline.logs import printable


class _Group(click.Group):
    """One message for a user's mistake, no traceback; the exit code is the error's own."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecpipeError as error:
            _say(ctx, f"Error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            _say(ctx, "Aborted. What is published stays; the same command goes on from there.")
            ctx.exit(EXIT_INTERRUPTED)


def _say(ctx: click.Context, text: str) -> None:
    if ctx.meta.get(AS_JSON):
        logging.getLogger("specpipe").error("%s", text)
    else:
        click.echo(printable(text), err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specpipe")
def main() -> None:
    """Generate text for whole datasets, with speculative decoding.

    \b
      specpipe run jobs/sharegpt.yaml             generate; a second start goes on where the first one ended
      specpipe run jobs/sharegpt.yaml --dry-run   what it would do, without doing it
      specpipe show runs/sharegpt                 how a run went, or goes
      specpipe compare runs/plain runs/sharegpt   whether two runs' outputs and scores are the same
      specpipe eval run jobs/eval-tiny.yaml       proof with lm-eval that speculation changes nothing
      specpipe verify runs/sharegpt               proves that no row is missing, doubled or damaged

    \b
    Exit codes:
      0    complete
      1    failed
      2    bad usage, job file, model, dataset or output folder
      3    complete, with more failed rows or shards than the job allows
      130  interrupted; start it again to resume
    """


main.add_command(bench)
main.add_command(init)
main.add_command(run)
main.add_command(convert)
main.add_command(compare)
main.add_command(doctor)
main.add_command(evaluate)
main.add_command(show)
main.add_command(verify)
