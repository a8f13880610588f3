"""`specpipe doctor`."""

from __future__ import annotations

import click


@click.command(short_help="Check what a job needs of this machine.")
@click.argument("job", type=click.Path(), required=False)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a field of the job, any number.")
@click.pass_context
def doctor(ctx: click.Context, job: str | None, overrides: tuple[str, ...]) -> None:
    """Check this machine, and whether it can run JOB: software, GPUs, disks, output folder, models, dataset, memory.

    Nothing is downloaded or started. Exit code 1 when something has to be mended.
    """
    from rich.console import Console
    from rich.text import Text

    from specpipe.cli.log_setup import quiet
    from specpipe.doctor import examine
    from specpipe.errors import EXIT_FAILED
    from specpipe.job import load_job

    quiet(verbose=False)
    spec = None if job is None else load_job(job, overrides)
    console = Console(soft_wrap=True)
    marks = {"ok": ("ok     ", "green"), "note": ("note   ", "yellow"), "problem": ("PROBLEM", "bold red")}
    problems = 0
    for finding in examine(spec):
        problems += finding.status == "problem"
        console.print(Text.assemble(marks[finding.status], " ", (f"{finding.name}: ", "bold"), finding.found))
        if finding.mend:
            console.print(Text(f"        → {finding.mend}"))
    console.print(f"{problems} problem(s)" if problems else "Nothing to mend.")
    ctx.exit(EXIT_FAILED if problems else 0)
