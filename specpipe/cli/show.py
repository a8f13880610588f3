"""`specpipe show`."""

from __future__ import annotations

import click

from specpipe.cli.options import json_option


@click.command(short_help="Show the totals and progress of a run.")
@click.argument("run", type=click.Path())
@click.option("--follow", is_flag=True, help="Show progress until the run ends; exit with the exit code of the run.")
@click.option(
    "--html", "page", is_flag=False, flag_value="", metavar="[FILE]", help="Write the report of the run as HTML."
)
@json_option("Print the summary as JSON; with --follow, one JSON object per line while the run goes on.")
@click.pass_context
def show(ctx: click.Context, run: str, follow: bool, page: str | None, as_json: bool) -> None:
    """Print the totals of RUN, the output folder of a job, during the run or after it.

    RUN may be a URI, and the job may run on another machine: only files in its folder are read. --html without FILE
    writes a file named after RUN to the current directory.

    RUN may also be a history of evaluations, a Parquet file that `specpipe eval run` appends to: prints scores and
    acceptance over time.

    \b
      specpipe show runs/sharegpt
      specpipe show s3://bucket/answers --follow
      specpipe show runs/sharegpt --html report.html
      specpipe show runs/sharegpt --json | jq .spec_decode_acceptance_length
      specpipe show runs/eval-history.parquet
    """
    import os

    if os.path.isfile(run):
        _show_history(run, as_json=as_json)
        return
    code, state = _follow(run, as_json=as_json) if follow else (0, None)
    if page is not None:
        _write_page(run, page)
    elif not (follow and as_json):
        _show_summary(run, state, as_json=as_json)
    ctx.exit(code)


def _show_history(path: str, *, as_json: bool) -> None:
    import json

    from specpipe.cli.history_table import print_history
    from specpipe.evaluation.schedule.eval_history import read_history

    table = read_history(path)
    if as_json:
        click.echo(json.dumps(table.to_pylist(), indent=1, ensure_ascii=False, default=str))
    else:
        print_history(path, table)


def _follow(run: str, *, as_json: bool) -> tuple[int, str | None]:
    """Shows progress until the run ends.

    Returns the exit code of the run and the final state that it recorded; for an interrupted command its own exit code
    and None.
    """
    import json

    from specpipe.cli.run_display import RunDisplay
    from specpipe.errors import EXIT_INTERRUPTED
    from specpipe.pipeline.run.follow import DIED, follow

    try:
        with RunDisplay(run.rstrip("/").rpartition("/")[2], interruptible=False) as display:
            end = follow(run, (lambda now: click.echo(json.dumps(now.to_dict()))) if as_json else display.show)
    except KeyboardInterrupt:
        click.echo("Stopped following. The run itself is not affected.", err=True)
        return EXIT_INTERRUPTED, None
    if end.state == DIED:
        click.echo("The driver ended without recording a final state. Run the job again to resume.", err=True)
        return end.exit_code, None
    return end.exit_code, end.state


def _write_page(run: str, page: str) -> None:
    from pathlib import Path

    from specpipe.errors import OutputError
    from specpipe.pipeline.run.report_page import report_of

    path = Path(page or f"{run.rstrip('/').rpartition('/')[2] or 'run'}.html")
    html = report_of(run)
    try:
        path.write_text(html, encoding="utf-8", errors="replace")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}; give another file with --html") from error
    click.echo(str(path))


def _show_summary(run: str, state: str | None, *, as_json: bool) -> None:
    """Prints the summary. `state`: recorded final state; the lock may be held a little longer, while Ray stops."""
    import json

    from specpipe.cli.summary_table import print_summary
    from specpipe.pipeline.run.inspection import inspect_run

    summary = inspect_run(run)
    summary["state"] = state or summary["state"]
    if as_json:
        click.echo(json.dumps(summary, indent=1, ensure_ascii=False))
    else:
        print_summary(summary, title=run)
