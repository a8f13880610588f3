"""`specpipe verify`."""

from __future__ import annotations

import click


@click.command(short_help="Prove that a run is complete.")
@click.argument("run", type=click.Path())
@click.option("--fast", is_flag=True, help="Do not read the inputs again: trust their size and time of change.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def verify(ctx: click.Context, run: str, fast: bool, as_json: bool) -> None:
    """Prove that RUN, the output folder of a job, holds every input row exactly once.

    Reads the inputs and every page of every part again: shard hashes, row names, seeds, checksums and telemetry must
    fit together. Lists what is missing or wrong, by shard and row. No model is loaded and nothing is written.

    \b
    Exit codes: 0 proven complete · 1 something is wrong · 2 no run · 3 rows are missing, or more failed than allowed

    \b
      specpipe verify runs/sharegpt
      specpipe verify runs/sharegpt --json | jq .findings
    """
    import json

    from specpipe.pipeline.store.verify import verify as prove

    found = prove(run, fast=fast)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
        ctx.exit(found.exit_code)
    for finding in found.findings:
        click.echo(f"{finding.kind.upper():7} {finding}")
    rows = f"{found.verified_rows:,} of {found.rows:,} rows, {found.verified_shards:,} of {found.shards:,} shards"
    failed = f"; {found.failed_rows:,} rows have an error ({found.max_failed_rows:,} allowed)"
    click.echo(f"{rows} are proven" + (failed if found.failed_rows else ""))
    if found.complete:
        click.echo("Complete: every input row is there once" + (" (inputs not read again)." if fast else "."))
    elif found.exit_code != 1:
        click.echo("Incomplete: start the run again to make what is missing.")
    else:
        click.echo("Not to be trusted: delete the parts named above and start the run again to make them anew.")
    ctx.exit(found.exit_code)
