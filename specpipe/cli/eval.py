"""`specpipe eval`: scores of runs by lm-eval."""

from __future__ import annotations

import click

from specpipe.cli.options import log_json_option, set_option, verbose_option

_PASS_FLAGS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group("eval", short_help="Score runs with lm-eval.")
def evaluate() -> None:
    """Score the outputs of runs with lm-eval's own tasks and metrics.

    \b
      specpipe eval record --model builtin:tiny --out gsm8k.parquet --tasks gsm8k
      specpipe run job.yaml --set data.path=gsm8k.parquet
      specpipe eval replay runs/job
    """


@evaluate.command(context_settings=_PASS_FLAGS_ON, short_help="Write the requests of an evaluation as a dataset.")
@click.option("--model", required=True, metavar="NAME", help="Target model; prompts use its tokenizer and template.")
@click.option("--out", required=True, metavar="FILE", help="Parquet file to write.")
@click.option(
    "--max-length", type=click.IntRange(min=2), metavar="N", help="Most tokens of a prompt and its output together."
)
@click.option("--chat-template", type=click.Path(), metavar="FILE", help="Jinja template; default: the model's own.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the tokenizer.")
@click.option(
    "--add-bos-token/--no-add-bos-token", default=None, help="Passed on as lm-eval's model argument add_bos_token."
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def record(
    model: str,
    out: str,
    max_length: int | None,
    chat_template: str | None,
    trust_remote_code: bool,
    add_bos_token: bool | None,
    flags: tuple[str, ...],
) -> None:
    """Write the requests of an lm-eval evaluation as a dataset for `specpipe run`.

    FLAGS are options of lm-eval's own command line. They follow those of specpipe.

    \b
      specpipe eval record --model builtin:tiny --out requests.parquet \\
          --tasks gsm8k --num_fewshot 5 --limit 200 --apply_chat_template
    """
    from specpipe.cli.log_setup import configure_logging

    configure_logging()
    from specpipe.evaluation.harness.recording import record as record_requests

    count = record_requests(
        flags,
        out,
        target=model,
        max_length=max_length,
        chat_template=chat_template,
        trust_remote_code=trust_remote_code,
        add_bos_token=add_bos_token,
    )
    click.echo(f"{count:,} requests → {out}")


@evaluate.command(context_settings=_PASS_FLAGS_ON, short_help="Score the outputs of a run.")
@click.option("--out", metavar="FOLDER", help="Folder for the results.  [default: lm_eval in the run's folder]")
@click.option("--requests", metavar="FILE", help="Recorded requests, if the file has moved since the run.")
@click.argument("run", metavar="RUN")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def replay(out: str | None, requests: str | None, run: str, flags: tuple[str, ...]) -> None:
    """Score RUN, the output folder of a job on recorded requests, with lm-eval.

    lm-eval's options are those of the recording. FLAGS may add others, but none that change prompts or scores.
    """
    from specpipe.cli.log_setup import configure_logging

    configure_logging()
    from specpipe.evaluation.harness.replay import replay as score

    scored = score(run, flags, out=out, requests=requests)
    click.echo(scored.tables)
    click.echo(f"→ {scored.folder}")


@evaluate.command(short_help="Record, run, score and compare with a baseline.")
@click.argument("job", type=click.Path())
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use only the first N documents of each task.")
@set_option
@verbose_option
@log_json_option
@click.pass_context
def run(
    ctx: click.Context, job: str, limit: int | None, overrides: tuple[str, ...], verbose: bool, log_json: bool
) -> None:
    """Run JOB, a job file with a section `eval`, and its baseline, and compare the scores.

    The baseline is the same job without speculation, or with other keys (eval.baseline), or an existing run.

    Suited to a schedule (output.path: runs/{name}-{date}). Run the same command again to resume. The exit code is 1 if
    they differ by more than chance and rounding explain.
    """
    from specpipe.cli.log_setup import configure_logging

    configure_logging(verbose=verbose, as_json=log_json)
    from specpipe.cli.comparison_table import print_comparison
    from specpipe.cli.log_display import LogDisplay, display_for, log_result
    from specpipe.evaluation.schedule.eval_job import load_eval_job
    from specpipe.evaluation.schedule.run_evaluation import run_evaluation
    from specpipe.job import JobSpec
    from specpipe.pipeline.cluster.backend import RayBackend
    from specpipe.pipeline.run.run import RunResult, Viewer, execute

    def execute_with_display(spec: JobSpec) -> RunResult:
        with display_for(spec.name, as_json=log_json) as display:
            viewer = Viewer(announce=display.announce, progress=display.show)
            result = execute(spec, viewer=viewer, backend=RayBackend(verbose=verbose, json_logs=log_json))
        if log_json:
            log_result(result)
        return result

    eval_job = load_eval_job(job, overrides, limit=limit)
    announce = LogDisplay().announce if log_json else click.echo
    result = run_evaluation(eval_job, execute_with_display, announce)
    if result.comparison is not None and log_json:
        announce(f"{result.comparison.verdict} → {eval_job.folder}")
    elif result.comparison is not None:
        print_comparison(result.comparison)
        click.echo(f"→ {eval_job.folder}")
    ctx.exit(result.exit_code)
