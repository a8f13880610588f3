"""`specpipe bench engine replay`: a job run again with its own answers as drafts."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import EngineBench
from specpipe.cli.bench.engine_options import integer_option, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from specpipe.benchmark.replay_work import ReplayResult

_DEFAULTS = EngineBench()


@click.command(short_help="A job again, with its answers as drafts.")
@click.option(
    "--target", metavar="SHAPE", default=_DEFAULTS.target, show_default=True, help="Shape of the target model."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device to measure; auto is the GPU if there is one.",
)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=click.IntRange(1),
    default=[16, 64, 256],
    show_default=True,
    help="Rows that run at once; the job has three times as many. May be given several times.",
)
@integer_option("--replay-tokens", 15, "Draft tokens of a row that follows its answer.", most=MAX_DRAFT_TOKENS)
@integer_option("--prompt-tokens", _DEFAULTS.prompt_tokens, "Tokens of each prompt.")
@integer_option("--new-tokens", _DEFAULTS.new_tokens, "Tokens of each answer.", least=16)
@json_option("Print one JSON object per line.")
def replay(
    target: str,
    device: str,
    batches: tuple[int, ...],
    replay_tokens: int,
    prompt_tokens: int,
    new_tokens: int,
    as_json: bool,
) -> None:
    """Measure plain decoding, then the same rows with their answers to follow, under the policy goodput.

    Of the answers 0, 10, 50 and 100 % depart after a few tokens. The target has random weights, but a fixed successor
    of each token, so that both runs give the same answers; without a draft model.

    \b
      specpipe bench engine replay --batch 16 --batch 64
    """
    models = read_model_options(target, target, "none", "none", "auto", device)
    from specpipe.benchmark.replay_work import measure_replay

    longest = prompt_tokens + new_tokens
    bench = models.bench(batches=batches, prompt_tokens=prompt_tokens, new_tokens=new_tokens, max_model_len=longest)
    for result in measure_replay(bench, replay_tokens):
        click.echo(json.dumps(dataclasses.asdict(result)) if as_json else result_line(result))


def result_line(result: ReplayResult) -> str:
    """Returns a result as one line of text."""
    what = "plain" if result.departed is None else f"{result.departed:.0%} depart"
    rounds = ", ".join(f"{name}: {count}" for name, count in sorted(result.rounds.items()))
    return (
        f"{result.slots:>4} slots  {what:<12} {result.tokens_per_s:10,.0f} tok/s  {result.ratio:5.2f} x plain   "
        f"{result.acceptance_length:5.2f} tokens a draft   {result.followed_share:.1%} followed   "
        f"{result.equal_rows} of {result.rows} rows equal   rounds {rounds}"
    )
