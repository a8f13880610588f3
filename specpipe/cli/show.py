"""`specpipe show`."""

from __future__ import annotations

import click


@click.command(short_help="Show how a run went, or goes.")
@click.argument("run", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def show(run: str, as_json: bool) -> None:
    """Print the totals of RUN, the output folder of a job, also while the job is running.

    Of a history of evaluations, a Parquet file that `specpipe eval run` appends to: scores and acceptance over time.

    \b
      specpipe show runs/sharegpt
      specpipe show runs/sharegpt --json | jq .spec_decode_acceptance_length
      specpipe show runs/eval-history.parquet
    """
    import json
    import os

    if os.path.isfile(run):
        from specpipe.cli.history_table import print_history
        from specpipe.evaluation.history import read_history

        table = read_history(run)
        if as_json:
            click.echo(json.dumps(table.to_pylist(), indent=1, ensure_ascii=False, default=str))
        else:
            print_history(run, table)
        return

    from specpipe.pipeline.inspect import inspect

    summary = inspect(run)
    if as_json:
        click.echo(json.dumps(summary, indent=1, ensure_ascii=False))
        return
    from specpipe.cli.summary_table import print_summary

    print_summary(summary, title=run)
