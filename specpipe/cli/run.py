"""`specpipe run`."""

from __future__ import annotations

import click

from specpipe.cli.options import log_json_option, set_option, verbose_option


@click.command(short_help="Run a job, or resume it.")
@click.argument("job", type=click.Path(), required=False)
@click.option("--model", metavar="NAME", help="Target model (model.target).")
@click.option(
    "--draft", metavar="NAME", help="Draft model (model.draft). Without JOB and --draft, n-grams of the row are used."
)
@click.option("--data", metavar="PATH", help="Dataset (data.path).")
@click.option("--out", metavar="PATH", help="Output folder (output.path).")
@click.option("--dry-run", is_flag=True, help="Check the job, its models and data, and print the plan; run nothing.")
@click.option("--retry-failed", is_flag=True, help="Also run rows again whose output has an error.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Run only the first N rows (data.limit).")
@click.option("--benchmark", is_flag=True, help="Print the totals as serving benchmarks do.")
@set_option
@verbose_option
@log_json_option
@click.pass_context
def run(
    ctx: click.Context,
    job: str | None,
    model: str | None,
    draft: str | None,
    data: str | None,
    out: str | None,
    dry_run: bool,
    retry_failed: bool,
    limit: int | None,
    benchmark: bool,
    overrides: tuple[str, ...],
    verbose: bool,
    log_json: bool,
) -> None:
    """Run JOB, a YAML file, and write outputs and telemetry to its output.path.

    Without JOB, --model, --data and --out describe the job; --set sets other fields.

    Run the same command again to resume after an interruption or a crash: published shards are not run again. Ctrl-C
    once stops after the running shards have finished, twice stops at once; published outputs are kept. Rows that failed
    are run again only with --retry-failed.

    \b
      specpipe run jobs/sharegpt.yaml --limit 20 --set output.path=runs/try
      specpipe run jobs/sharegpt.yaml --set speculation.policy=off --set workers.slots=32
      specpipe run --model builtin:tiny --draft builtin:tiny --data prompts.jsonl --out runs/tiny
    """
    from specpipe.cli.log_setup import configure_logging
    from specpipe.job.job_from_options import job_from_options

    configure_logging(verbose=verbose, as_json=log_json)
    limits = () if limit is None else (f"data.limit={limit}",)
    spec = job_from_options(job, (*overrides, *limits), model=model, draft=draft, data=data, out=out)
    if dry_run:
        from specpipe.cli.plan_table import print_plan
        from specpipe.pipeline.run.dry_run import plan_run

        print_plan(spec.name, plan_run(spec))
        return
    from specpipe.cli.log_display import display_for, log_result
    from specpipe.cli.summary_table import print_result
    from specpipe.pipeline.cluster.backend import RayBackend
    from specpipe.pipeline.run.run import Viewer, execute

    with display_for(spec.name, as_json=log_json) as display:
        viewer = Viewer(announce=display.announce, progress=display.show)
        backend = RayBackend(verbose=verbose, json_logs=log_json)
        result = execute(spec, viewer=viewer, backend=backend, retry_failed=retry_failed)
    if log_json:
        log_result(result)
    elif benchmark:
        from specpipe.cli.benchmark_report import benchmark_report

        click.echo(benchmark_report(result.summary))
    else:
        print_result(result, spec.output.max_failed_rows)
    ctx.exit(result.exit_code)
