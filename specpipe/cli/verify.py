"""`specpipe verify`."""

from __future__ import annotations

import click

from specpipe.cli.options import json_option


@click.command(short_help="Verify that a run is complete.")
@click.argument("run", type=click.Path())
@click.option("--fast", is_flag=True, help="Do not read the inputs again: check only their size and modification time.")
@json_option("Print the result as JSON.")
@click.pass_context
def verify(ctx: click.Context, run: str, fast: bool, as_json: bool) -> None:
    """Verify that RUN, the output folder of a job, holds every input row exactly once.

    Reads the inputs and every page of every part: shard hashes, row ids, seeds, checksums and telemetry must match.
    Prints what is missing or wrong by shard and row. Loads no model and writes nothing.

    \b
    Exit codes:
      0  verified complete
      1  data is damaged or inconsistent
      2  RUN is not a run
      3  rows are missing, or more rows failed than the job allows

    \b
      specpipe verify runs/sharegpt
      specpipe verify runs/sharegpt --json | jq .findings
    """
    import json

    from specpipe.pipeline.store.verify import verify as verify_run

    result = verify_run(run, fast=fast)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1, ensure_ascii=False))
        ctx.exit(result.exit_code)
    for finding in result.findings:
        click.echo(f"{finding.kind.upper():7} {finding}")
    rows = f"{result.verified_rows:,} of {result.rows:,} rows, {result.verified_shards:,} of {result.shards:,} shards"
    failed = f"; {result.failed_rows:,} rows have an error ({result.max_failed_rows:,} allowed)"
    click.echo(f"{rows} verified" + (failed if result.failed_rows else ""))
    if result.complete:
        click.echo("Complete: every input row is in the output once" + (" (inputs not read again)." if fast else "."))
    elif result.exit_code != 1:
        click.echo("Incomplete: run the job again to generate the missing rows.")
    else:
        click.echo("Damaged: delete the parts listed above and run the job again to generate them anew.")
    ctx.exit(result.exit_code)
