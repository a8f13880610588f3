"""`specpipe bench engine`."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

import click

from specpipe.cli.bench.engine_lines import measured_line, profile_table, start_line
from specpipe.cli.bench.engine_policy import run_jobs
from specpipe.errors import JobError, MachineError

if TYPE_CHECKING:
    from specpipe.benchmark.policy_comparison import Comparison
    from specpipe.benchmark.synthetic_engine import EngineBench

_TARGET = "llama-3.1-8b"


@click.command(short_help="Decode throughput over batch sizes and K.")
@click.option("--target", default=_TARGET, show_default=True, help="Shape of the target; weights are random.")
@click.option("--draft", default="llama-3.2-1b", show_default=True, help="Shape of the draft.")
@click.option("--draft-dtype", type=click.Choice(["auto", "fp8"]), default="auto", show_default=True)
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1), help="Rows at once; any number of times.")
@click.option("--k", "ks", multiple=True, type=click.IntRange(0, 32), help="Draft tokens; any number of times.")
@click.option("--rates", default="0.8718,0.5663,0.3188", show_default=True, help="Synthetic acceptance per position.")
@click.option("--prompt-tokens", default=230, show_default=True, type=click.IntRange(1))
@click.option("--new-tokens", type=click.IntRange(2), help="Default: 300, and 128 with --against-transformers.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--mixed", is_flag=True, help="Also 768 rows of 32 to 511 tokens in and out, prefill included, for each K."
)
@click.option(
    "--profile", is_flag=True, help="After each batch size and K, 20 rounds more under torch.profiler: kernels by time."
)
@click.option(
    "--against-transformers",
    is_flag=True,
    help="Instead: builtin:tiny on this CPU, 64 prompts (--batch) at once with one --k, here and through transformers' "
    "assisted and plain generation; their tokens must be equal.",
)
@click.option(
    "--policy",
    type=click.Choice(["goodput", "queue_threshold"]),
    help="Instead: jobs of mixed lengths that drain to their tail, under this policy and every fixed --k (0 1 2 3 5).",
)
@click.option("--slots", default=256, show_default=True, type=click.IntRange(1), help="With --policy: rows at once.")
@click.option("--rows", default=768, show_default=True, type=click.IntRange(1), help="With --policy: rows of a job.")
@click.option("--shard-rows", default=192, show_default=True, type=click.IntRange(1), help="With --policy.")
@click.option(
    "--longest", default=511, show_default=True, type=click.IntRange(2), help="With --policy: most tokens in and out."
)
@click.option(
    "--acceptance",
    multiple=True,
    help="With --policy: high, middle, low or useless; any number of times, all if left out. The last conditional rate "
    "holds for positions beyond the third.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def engine(
    target: str,
    draft: str,
    draft_dtype: str,
    batches: tuple[int, ...],
    ks: tuple[int, ...],
    rates: str,
    prompt_tokens: int,
    new_tokens: int | None,
    device: str,
    mixed: bool,
    profile: bool,
    against_transformers: bool,
    policy: str | None,
    slots: int,
    rows: int,
    shard_rows: int,
    longest: int,
    acceptance: tuple[str, ...],
    as_json: bool,
) -> None:
    """Decode-only tokens per second of one engine with random weights and synthetic acceptance.

    Decode-only = generated tokens / (seconds of the run - seconds of the same prompts with one token each).

    \b
      specpipe bench engine --batch 1 --batch 64 --k 0 --k 2
      specpipe bench engine --device cpu --target small --draft small --batch 4
      specpipe bench engine --against-transformers
      specpipe bench engine --policy goodput --slots 16 --rows 96
    """
    if against_transformers:
        _against(prompts=(batches or (64,))[0], k=(ks or (3,))[0], new_tokens=new_tokens or 128, as_json=as_json)
        return
    began = time.perf_counter()
    where = _device(device, target)
    pair: dict[str, Any] = {
        "target": target,
        "draft": draft,
        "device": where,
        "dtype": "bfloat16" if where == "cuda" else "float32",
        "draft_fp8": draft_dtype == "fp8",
    }
    if policy is not None:
        jobs = _jobs(policy, ks, acceptance, rows=rows, shard_rows=shard_rows, longest=longest)
        run_jobs(_tuned_bench(pair, jobs, slots), jobs, as_json=as_json)
        return
    from specpipe.benchmark.synthetic_engine import EngineBench

    new_tokens = new_tokens or 300
    if max(ks or (3,)) > len(_rates(rates)):
        raise JobError(f"--rates gives {len(_rates(rates))} rates for K = {max(ks)}; expected one for every position")
    what = EngineBench(
        **pair,
        batches=batches or (1, 16, 64, 256),
        ks=ks or (0, 1, 2, 3),
        rates=_rates(rates),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        max_model_len=max(prompt_tokens + new_tokens, 1024 if mixed else 0),
        profiled_rounds=20 if profile else 0,
    )
    _sweep(what, began, mixed=mixed, as_json=as_json)


def _device(asked: str, target: str) -> str:
    import torch

    gpu = torch.cuda.is_available()
    if not gpu and (asked == "cuda" or (asked == "auto" and target == _TARGET)):
        raise MachineError(
            f"torch sees no GPU here, and shapes such as {_TARGET} are for one; `specpipe doctor` says why. "
            "On a CPU: --device cpu --target small --draft small"
        )
    return asked if asked != "auto" else ("cuda" if gpu else "cpu")


def _jobs(
    policy: str, ks: tuple[int, ...], acceptance: tuple[str, ...], *, rows: int, shard_rows: int, longest: int
) -> Comparison:
    from specpipe.benchmark.policy_comparison import ACCEPTANCE, Comparison

    return Comparison(
        policy=policy,
        ks=tuple(sorted({0, *(ks or (1, 2, 3, 5))})),
        acceptance=acceptance or tuple(ACCEPTANCE),
        rows=rows,
        shard_rows=shard_rows,
        shortest=min(32, longest),
        longest=longest,
    )


def _tuned_bench(pair: dict[str, Any], jobs: Comparison, slots: int) -> EngineBench:
    from specpipe.benchmark.policy_comparison import rates_for
    from specpipe.benchmark.synthetic_engine import EngineBench

    return EngineBench(
        **pair,
        batches=(slots,),
        ks=jobs.ks,
        rates=rates_for((1.0,), max(jobs.ks)),
        max_model_len=2 * jobs.longest + 2,
        tuned=True,
    )


def _sweep(what: EngineBench, began: float, *, mixed: bool, as_json: bool) -> None:
    """Prints each figure as it comes."""
    from specpipe.benchmark.decode_throughput import mixed_job, sweep
    from specpipe.benchmark.start_up_time import start

    built, started = start(what, began)
    click.echo(json.dumps({"start_up": dataclasses.asdict(started)}) if as_json else start_line(started))
    for measured in sweep(built, what):
        click.echo(json.dumps(dataclasses.asdict(measured)) if as_json else measured_line(measured))
        if measured.profile and not as_json:
            click.echo(profile_table(measured.profile))
    for k in what.ks if mixed else ():
        speed = mixed_job(built, k)
        found = {"mixed_k": k, "tokens_per_s": speed}
        click.echo(json.dumps(found) if as_json else f"mixed job, K={k}: {speed:,.0f} tok/s")


def _against(*, prompts: int, k: int, new_tokens: int, as_json: bool) -> None:
    from specpipe.benchmark.transformers_comparison import Against, compare

    found = list(compare(Against(prompts=prompts, k=k, new_tokens=new_tokens)))
    ratio = found[0].tokens_per_s / max(other.tokens_per_s for other in found[1:])
    if as_json:
        click.echo(json.dumps({"ratio": ratio, "ways": [dataclasses.asdict(way) for way in found]}))
        return
    for way in found:
        click.echo(
            f"{way.name:<36} {way.tokens_per_s:8,.0f} tok/s   {way.seconds:7.2f} s   {way.cpu_seconds:7.2f} CPU s"
        )
    click.echo(f"{ratio:.2f} times the faster of the two")


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or any(not 0 <= rate <= 1 for rate in rates) or sorted(rates, reverse=True) != list(rates):
        raise JobError(f"--rates is {text!r}; expected numbers from 1 to 0 that do not rise, as in 0.9,0.6,0.3")
    return rates
