"""`specpipe bench engine prefixes`: jobs whose prompts repeat each other."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import SHARED_WORKS, BenchQuantize, EngineBench
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import KVDtypeChoice

if TYPE_CHECKING:
    from specpipe.benchmark.shared_work import SharedWorkResult

_MAX_K = len(EngineBench().rates)


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
    type=click.IntRange(0, _MAX_K),
    default=[0],
    show_default=True,
    help="Draft tokens per round; 0 is plain decoding. May be given several times.",
)
@click.option(
    "--policy",
    "policy_name",
    type=click.Choice(["goodput"]),
    help=f"Also run each job under this policy, with K up to {_MAX_K}.  [default: fixed K alone]",
)
@click.option("--sharing/--no-sharing", default=True, show_default=True, help="Compute equal beginnings once.")
@integer_option("--slots", max(EngineBench().batches), "Rows run at once.")
@json_option("Print one JSON object per line.")
def prefixes(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
    works: tuple[str, ...],
    ks: tuple[int, ...],
    policy_name: str | None,
    sharing: bool,
    slots: int,
    as_json: bool,
) -> None:
    """Measure complete jobs whose prompts begin alike, prefill included.

    few-shot: 1,319 prompts of 1,024 common and 96 own tokens, 128 tokens out; short-answers: the same, 16 tokens out;
    samples: 8 samples of 96 prompts of 512 tokens, 128 tokens out.

    \b
      specpipe bench engine prefixes --work few-shot --k 0 --k 1 --policy goodput
    """
    models = read_model_options(target, draft, quantize, draft_quantize, kv_dtype, device)
    from specpipe.benchmark.shared_work import SharedWorkJobs
    from specpipe.benchmark.synthetic_engine import build_synthetic_engine

    longest = max(work.prompt_tokens + work.new_tokens for work in map(SHARED_WORKS.__getitem__, works))
    tuned = policy_name is not None
    bench = models.bench(
        batches=(slots,),
        ks=tuple(sorted({*ks, _MAX_K} if tuned else ks)),
        max_model_len=longest,
        prefix_sharing=sharing,
        every_k=tuned,
    )
    jobs = SharedWorkJobs(build_synthetic_engine(bench), tuned=tuned)
    for work in works:
        results = [partial(jobs.run_fixed, work, k) for k in ks]
        if policy_name is not None:
            results.append(partial(jobs.run_tuned, work, policy_name))
        for measure in results:
            result = measure()
            click.echo(json.dumps(dataclasses.asdict(result)) if as_json else result_line(result))


def result_line(result: SharedWorkResult) -> str:
    """Returns a result as one line of text."""
    share = 1 - result.prefill_tokens / result.prompt_tokens
    choice = result.policy if result.k is None else f"K={result.k}"
    rounds = f"   rounds by K {dict(result.k_rounds)}" if result.k is None else ""
    return (
        f"{result.work:<14} {choice:<8} {result.seconds:7.2f} s {result.output_tokens_per_s:10,.0f} tok/s   "
        f"round {result.round_ms:.2f} ms   {share:.1%} of {result.prompt_tokens:,} prompt tokens reused{rounds}"
    )
