"""`specpipe doctor`."""

from __future__ import annotations

import click

from specpipe.cli.options import set_option

_LABELS = {"ok": ("ok     ", "green"), "note": ("note   ", "yellow"), "problem": ("PROBLEM", "bold red")}


@click.command(short_help="Check whether this machine can run a job.")
@click.argument("job", type=click.Path(), required=False)
@set_option
@click.pass_context
def doctor(ctx: click.Context, job: str | None, overrides: tuple[str, ...]) -> None:
    """Check this machine and, with JOB, whether it can run the job.

    Checks software, GPUs and disks; of JOB the output folder, models, dataset and memory. Downloads and starts nothing.
    The exit code is 1 if there is a problem.
    """
    from rich.console import Console
    from rich.text import Text

    from specpipe.cli.log_setup import configure_logging
    from specpipe.doctor import diagnose
    from specpipe.errors import EXIT_FAILED
    from specpipe.job import load_job

    configure_logging()
    spec = None if job is None else load_job(job, overrides)
    console = Console(soft_wrap=True)
    problems = 0
    for diagnosis in diagnose(spec):
        problems += diagnosis.status == "problem"
        console.print(Text.assemble(_LABELS[diagnosis.status], " ", (f"{diagnosis.name}: ", "bold"), diagnosis.found))
        if diagnosis.remedy:
            console.print(Text(f"        → {diagnosis.remedy}"))
    console.print(f"{problems} problem{'s' if problems > 1 else ''} found." if problems else "No problems found.")
    ctx.exit(EXIT_FAILED if problems else 0)
