"""`specpipe eval`."""

from __future__ import annotations

import click

from specpipe.cli.options import log_option

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group("eval", short_help="Score runs with lm-eval.")
def evaluate() -> None:
    """Score what a run generated with lm-eval's own tasks and metrics.

    \b
      specpipe eval record --model builtin:tiny --out gsm8k.parquet --tasks gsm8k
      specpipe run job.yaml --set data.path=gsm8k.parquet
      specpipe eval replay runs/job
    """


@evaluate.command(context_settings=_PASS_ON, short_help="Write an evaluation's requests as a dataset.")
@click.option("--model", required=True, metavar="NAME", help="The target: its tokenizer and template make the prompts.")
@click.option("--out", required=True, metavar="FILE", help="The Parquet file to write.")
@click.option("--max-length", type=click.IntRange(min=2), metavar="N", help="Longest prompt + output in tokens.")
@click.option("--chat-template", type=click.Path(), help="A Jinja file instead of the model's own template.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the tokenizer.")
@click.option("--add-bos-token/--no-add-bos-token", default=None, help="As lm-eval's model argument of that name.")
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
    """Write what lm-eval would ask with FLAGS, its own command line, as a dataset that `specpipe run` reads.

    Options of specpipe come first, then lm-eval's.

    \b
      specpipe eval record --model builtin:tiny --out requests.parquet \\
          --tasks gsm8k --num_fewshot 5 --limit 200 --apply_chat_template
    """
    from specpipe.cli.log_setup import quiet

    quiet(verbose=False)
    from specpipe.evaluation.harness.recording import record as write

    count = write(
        flags,
        out,
        target=model,
        max_length=max_length,
        chat_template=chat_template,
        trust_remote_code=trust_remote_code,
        add_bos_token=add_bos_token,
    )
    click.echo(f"{count:,} requests → {out}")


@evaluate.command(context_settings=_PASS_ON, short_help="Score a run's outputs.")
@click.option("--out", metavar="FOLDER", help="Folder for the results. Left out: lm_eval in the run's own folder.")
@click.option("--requests", metavar="FILE", help="The recording, where it has moved since the run.")
@click.argument("run", metavar="RUN")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def replay(out: str | None, requests: str | None, run: str, flags: tuple[str, ...]) -> None:
    """Have lm-eval score RUN, the output folder of a job on a recording.

    FLAGS of lm-eval are the recorded ones; others that would change prompts or scores are refused.
    """
    from specpipe.cli.log_setup import quiet

    quiet(verbose=False)
    from specpipe.evaluation.harness.replay import replay as score

    scored = score(run, flags, out=out, requests=requests)
    click.echo(scored.tables)
    click.echo(f"→ {scored.folder}")


@evaluate.command(short_help="Record, run plain and speculative, score and compare.")
@click.argument("job", type=click.Path())
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents of each task.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a field of the job, any number.")
@click.option("-v", "--verbose", is_flag=True, help="Log what the driver and the workers do.")
@log_option
@click.pass_context
def run(
    ctx: click.Context, job: str, limit: int | None, overrides: tuple[str, ...], verbose: bool, log_json: bool
) -> None:
    """Run JOB, a job file with a section `eval`: made for a schedule (output.path: runs/{name}-{date}).

    Start it again to go on where it ended. The exit code is 1 where speculation changed a score by more than chance
    explains.
    """
    from specpipe.cli.log_setup import quiet

    quiet(verbose=verbose, as_json=log_json)
    from specpipe.cli.compare import print_comparison
    from specpipe.cli.log_display import LogDisplay, display_for, log_result
    from specpipe.evaluation.schedule.eval_job import load_eval_job
    from specpipe.evaluation.schedule.run_evaluation import run_evaluation
    from specpipe.job import JobSpec
    from specpipe.pipeline.cluster.backend import RayBackend
    from specpipe.pipeline.run.run import RunResult, Viewer, execute

    def execute_shown(spec: JobSpec) -> RunResult:
        with display_for(spec.name, as_json=log_json) as display:
            viewer = Viewer(announce=display.announce, progress=display.show)
            result = execute(spec, viewer=viewer, backend=RayBackend(verbose=verbose, json_logs=log_json))
        if log_json:
            log_result(result)
        return result

    loaded = load_eval_job(job, overrides, limit=limit)
    say = LogDisplay().announce if log_json else click.echo
    result = run_evaluation(loaded, execute_shown, say)
    if result.comparison is not None and log_json:
        say(f"{result.comparison.verdict} → {loaded.folder}")
    elif result.comparison is not None:
        print_comparison(result.comparison)
        click.echo(f"→ {loaded.folder}")
    ctx.exit(result.exit_code)
