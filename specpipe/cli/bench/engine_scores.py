"""`specpipe bench engine scores`: a multiple-choice evaluation."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import BenchQuantize, EngineBench, ScoreWork
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import KVDtypeChoice

if TYPE_CHECKING:
    from specpipe.benchmark.score_work import ScoreWorkResult

_WORK = ScoreWork()


@click.command(short_help="A multiple-choice evaluation of given texts.")
@model_options
@integer_option("--questions", _WORK.questions, "Questions; each is one row.")
@integer_option("--choices", _WORK.choices, "Choices of a question.")
@integer_option("--shared-tokens", _WORK.shared_tokens, "Tokens with which all prompts begin.", least=0)
@integer_option("--question-tokens", _WORK.question_tokens, "Tokens of a question.")
@integer_option("--choice-tokens", _WORK.choice_tokens, "Tokens of a choice.")
@integer_option("--slots", max(EngineBench().batches), "Choices that are computed at once.")
@integer_option("--prefill-budget", EngineBench().prefill_budget, "Tokens of one prefill.")
@json_option("Print one JSON object.")
def scores(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
    questions: int,
    choices: int,
    shared_tokens: int,
    question_tokens: int,
    choice_tokens: int,
    slots: int,
    prefill_budget: int,
    as_json: bool,
) -> None:
    """Measure log-probabilities of the choices of questions behind common examples.

    The result is compared with the time that prefilling each distinct token once takes. Speculation has no part in it.

    \b
      specpipe bench engine scores --questions 1000 --choices 4
    """
    models = read_model_options(target, draft, quantize, draft_quantize, kv_dtype, device)
    from specpipe.benchmark.score_work import measure_score_work
    from specpipe.benchmark.synthetic_engine import build_synthetic_engine

    work = ScoreWork(
        questions=questions,
        choices=choices,
        shared_tokens=shared_tokens,
        question_tokens=question_tokens,
        choice_tokens=choice_tokens,
    )
    bench = models.bench(
        batches=(slots,), ks=(0,), max_model_len=max(64, work.row_tokens), prefill_budget=prefill_budget
    )
    result = measure_score_work(build_synthetic_engine(bench), work)
    values = {**dataclasses.asdict(result), "ratio": result.ratio}
    click.echo(json.dumps(values) if as_json else result_line(result))


def result_line(result: ScoreWorkResult) -> str:
    """Returns a result as one line of text."""
    return (
        f"{result.requests:,} scores in {result.seconds:.2f} s, {result.requests_per_s:,.0f}/s   "
        f"{result.prefill_tokens:,} of {result.prompt_tokens:,} tokens computed, {result.distinct_tokens:,} distinct   "
        f"{result.ratio:.2f} x the {result.plain_seconds:.2f} s of prefilling the distinct tokens once"
    )
