"""`specpipe show`."""

from __future__ import annotations

import click


@click.command(short_help="Show how a run went, or goes.")
@click.argument("run", type=click.Path())
@click.option("--follow", is_flag=True, help="Stay until the run ends; the exit code is then the run's.")
@click.option("--html", "page", is_flag=False, flag_value="", metavar="[FILE]", help="Write the report, as of now.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; with --follow a line of JSON each.")
@click.pass_context
def show(ctx: click.Context, run: str, follow: bool, page: str | None, as_json: bool) -> None:
    """Print the totals of RUN, the output folder of a job, also while the job is running.

    RUN may be a URI, and the run may be going on elsewhere: its folder is all that is read. --html without FILE
    writes RUN's name with .html into the working directory.

    Of a history of evaluations, a Parquet file that `specpipe eval run` appends to: scores and acceptance over time.

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
        _print(run, state, as_json=as_json)
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
    """→ the run's exit code, or that of an interrupted command, and how the run said that it ended."""
    import json

    from specpipe.cli.run_display import RunDisplay
    from specpipe.errors import EXIT_INTERRUPTED
    from specpipe.pipeline.run.follow import DIED, follow

    try:
        with RunDisplay(run.rstrip("/").rpartition("/")[2], ours=False) as display:
            end = follow(run, (lambda now: click.echo(json.dumps(now.to_dict()))) if as_json else display.show)
    except KeyboardInterrupt:
        click.echo("Not followed any more; a run that goes on is not touched.", err=True)
        return EXIT_INTERRUPTED, None
    if end.state == DIED:
        click.echo("The run has stopped and not said why: its driver is gone. Start it again to go on.", err=True)
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
        raise OutputError(f"{path} cannot be written: {error}; give another file behind --html") from error
    click.echo(str(path))


def _print(run: str, state: str | None, *, as_json: bool) -> None:
    """`state`: how the run said that it ended; it may hold its lock a little longer, while Ray stops."""
    import json

    from specpipe.cli.summary_table import print_summary
    from specpipe.pipeline.run.inspection import inspect_run

    summary = inspect_run(run)
    summary["state"] = state or summary["state"]
    if as_json:
        click.echo(json.dumps(summary, indent=1, ensure_ascii=False))
    else:
        print_summary(summary, title=run)
