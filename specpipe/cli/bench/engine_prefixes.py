"""`specpipe bench engine prefixes`: jobs whose prompts repeat each other."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import SHARED_WORKS, EngineBench
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option

if TYPE_CHECKING:
    from specpipe.benchmark.shared_work import SharedWorkResult


@click.command(short_help="Jobs whose prompts begin alike.")
@model_options
@click.option(
    "--work",
    "works",
    multiple=True,
    type=click.Choice(list(SHARED_WORKS)),
    default=list(SHARED_WORKS),
    show_default=True,
    help="Job to measure. May be given several times.",
)
@click.option(
    "--k",
    "ks",
    multiple=True,
    type=click.IntRange(0, len(EngineBench().rates)),
    default=[0],
    show_default=True,
    help="Draft tokens per round; 0 is plain decoding. May be given several times.",
)
@click.option("--sharing/--no-sharing", default=True, show_default=True, help="Compute equal beginnings once.")
@integer_option("--slots", max(EngineBench().batches), "Rows run at once.")
@json_option("Print one JSON object per line.")
def prefixes(
    target: str,
    draft: str,
    draft_dtype: str,
    device: str,
    works: tuple[str, ...],
    ks: tuple[int, ...],
    sharing: bool,
    slots: int,
    as_json: bool,
) -> None:
    """Measure complete jobs whose prompts begin alike, prefill included.

    few-shot: 1,319 prompts of 1,024 common and 96 own tokens, 128 tokens out; short-answers: the same, 16 tokens out;
    samples: 8 samples of 96 prompts of 512 tokens, 128 tokens out.

    \b
      specpipe bench engine prefixes --work few-shot --k 0 --k 1
    """
    models = read_model_options(target, draft, draft_dtype, device)
    from specpipe.benchmark.shared_work import measure_shared_work
    from specpipe.benchmark.synthetic_engine import build_synthetic_engine

    longest = max(work.prompt_tokens + work.new_tokens for work in map(SHARED_WORKS.__getitem__, works))
    bench = models.bench(batches=(slots,), ks=tuple(sorted(ks)), max_model_len=longest, share_prefixes=sharing)
    engine = build_synthetic_engine(bench)
    for work in works:
        for k in ks:
            result = measure_shared_work(engine, work, k)
            click.echo(json.dumps(dataclasses.asdict(result)) if as_json else result_line(result))


def result_line(result: SharedWorkResult) -> str:
    """Returns a result as one line of text."""
    share = 1 - result.prefill_tokens / result.prompt_tokens
    return (
        f"{result.work:<14} K={result.k:<2} {result.seconds:7.2f} s {result.output_tokens_per_s:10,.0f} tok/s   "
        f"round {result.round_ms:.2f} ms   {share:.1%} of {result.prompt_tokens:,} prompt tokens reused"
    )
