"""The command group `specpipe`: its commands, and how errors and interrupts end them."""

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
from specpipe.cli.options import LOG_JSON
from specpipe.cli.run import run
from specpipe.cli.show import show
from specpipe.cli.verify import verify
from specpipe.errors import EXIT_INTERRUPTED, SpecpipeError
from specpipe.pipeline.logs import printable


class _MainGroup(click.Group):
    """Ends commands on a SpecpipeError with one message, without a traceback, and with the error's exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecpipeError as error:
            _report_error(ctx, f"Error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            _report_error(ctx, "Aborted. Published outputs are kept; run the same command again to resume.")
            ctx.exit(EXIT_INTERRUPTED)


def _report_error(ctx: click.Context, text: str) -> None:
    if ctx.meta.get(LOG_JSON):
        logging.getLogger("specpipe").error("%s", text)
    else:
        click.echo(printable(text), err=True)


@click.group(cls=_MainGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specpipe")
def main() -> None:
    """Generate text for whole datasets with speculative decoding.

    \b
      specpipe init job.yaml                      write a job file to start from
      specpipe run jobs/sharegpt.yaml             run a job; run it again to resume
      specpipe run jobs/sharegpt.yaml --dry-run   print the plan of a job without running it
      specpipe show runs/sharegpt                 show the totals and progress of a run
      specpipe verify runs/sharegpt               verify that no row is missing, duplicated or damaged
      specpipe compare runs/plain runs/sharegpt   compare outputs and scores of two runs
      specpipe eval run jobs/eval-tiny.yaml       test with lm-eval that speculation changes no score

    \b
    Exit codes:
      0    complete
      1    failed
      2    bad usage, job file, model, dataset or output folder
      3    complete, but with more failed rows or shards than the job allows
      130  interrupted; run the same command again to resume
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
