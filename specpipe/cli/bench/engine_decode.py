"""`specpipe bench engine decode`: decode throughput by batch size and K."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import MIXED_LENGTHS, MIXED_ROWS, PROFILED_ROUNDS, BenchQuantize, EngineBench
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import KVDtypeChoice
from specpipe.errors import JobError

if TYPE_CHECKING:
    from specpipe.benchmark.decode_throughput import DecodeResult
    from specpipe.benchmark.round_profile import RoundProfile
    from specpipe.benchmark.start_up_time import StartUpTime

_DEFAULTS = EngineBench()
_SHOWN_KERNELS = 30


@click.command(short_help="Decode throughput by batch size and K.")
@model_options
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=click.IntRange(1),
    default=_DEFAULTS.batches,
    show_default=True,
    help="Rows decoded at once. May be given several times.",
)
@click.option(
    "--k",
    "ks",
    multiple=True,
    type=click.IntRange(0, 32),
    default=_DEFAULTS.ks,
    show_default=True,
    help="Draft tokens per round; 0 is plain decoding. May be given several times.",
)
@click.option(
    "--rates",
    default=",".join(map(str, _DEFAULTS.rates)),
    show_default=True,
    help="Synthetic acceptance rate of each draft position.",
)
@integer_option("--prompt-tokens", _DEFAULTS.prompt_tokens, "Length of each prompt in tokens.")
@integer_option("--new-tokens", _DEFAULTS.new_tokens, "Tokens generated for each row.", least=2)
@click.option(
    "--mixed",
    is_flag=True,
    help=f"Also measure, for each K, a job of {MIXED_ROWS} rows with {MIXED_LENGTHS[0]} to {MIXED_LENGTHS[1]} tokens "
    "in and out, prefill included.",
)
@click.option(
    "--profile",
    is_flag=True,
    help=f"Also run {PROFILED_ROUNDS} more rounds of each batch size and K under torch.profiler; print kernels by "
    "time.",
)
@click.option("--copies/--no-copies", default=True, show_default=True, help="Keep dense copies of 4-bit weights.")
@json_option("Print one JSON object per line.")
def decode(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
    batches: tuple[int, ...],
    ks: tuple[int, ...],
    rates: str,
    prompt_tokens: int,
    new_tokens: int,
    mixed: bool,
    profile: bool,
    copies: bool,
    as_json: bool,
) -> None:
    """Measure decode throughput by batch size and K, with random weights and synthetic acceptance.

    Decode throughput = generated tokens / (seconds of the run - seconds of prefill). The first line
    is the start-up time.

    \b
      specpipe bench engine decode --batch 1 --batch 64 --k 0 --k 2
      specpipe bench engine decode --device cpu --target small --draft small --batch 4
    """
    began = time.perf_counter()
    models = read_model_options(target, draft, quantize, draft_quantize, kv_dtype, device)
    from specpipe.benchmark.decode_throughput import measure_all, measure_mixed_job
    from specpipe.benchmark.start_up_time import measure_start_up

    accepted = parse_rates(rates)
    if max(ks) > len(accepted):
        raise JobError(
            f"--rates gives {len(accepted)} rates for K = {max(ks)}; expected one for each of the {max(ks)} positions"
        )
    bench = models.bench(
        batches=batches,
        ks=ks,
        rates=accepted,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        max_model_len=max(prompt_tokens + new_tokens, 1024 if mixed else 0),
        profiled_rounds=PROFILED_ROUNDS if profile else 0,
        dense_copies=copies,
    )
    engine, start_up = measure_start_up(bench, began)
    click.echo(json.dumps({"start_up": dataclasses.asdict(start_up)}) if as_json else start_up_line(start_up))
    for result in measure_all(engine, bench):
        click.echo(json.dumps(dataclasses.asdict(result)) if as_json else decode_line(result))
        if result.profile and not as_json:
            click.echo(profile_table(result.profile))
    for k in ks if mixed else ():
        job = measure_mixed_job(engine, k)
        line = f"mixed job, K={k}: {job.tokens_per_s:,.0f} tok/s"
        click.echo(json.dumps(dataclasses.asdict(job)) if as_json else line)


def parse_rates(text: str) -> tuple[float, ...]:
    """Returns the rates of --rates. Raises JobError unless they are numbers from 1 to 0 that do not rise."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or any(not 0 <= rate <= 1 for rate in rates) or sorted(rates, reverse=True) != list(rates):
        raise JobError(f"--rates is {text!r}; expected numbers from 1 to 0 that do not rise, as in 0.9,0.6,0.3")
    return rates


def start_up_line(start_up: StartUpTime) -> str:
    """Returns the start-up time by stage in one line."""
    return (
        f"first token after {start_up.total_s:.1f} s: import {start_up.import_s:.1f}, weights and KV memory "
        f"{start_up.build_s:.1f}, graphs {start_up.prepare_s:.1f}, one row {start_up.first_token_s:.1f}"
    )


def decode_line(result: DecodeResult) -> str:
    """Returns the measurements of one batch size and K in one line."""
    phases = ", ".join(f"{phase} {ms:.2f}" for phase, ms in result.phases_ms.items())
    return (
        f"B={result.batch:<4} K={result.k:<2} {result.decode_tokens_per_s:10,.0f} tok/s   "
        f"acceptance length {result.acceptance_length:.2f}   round {result.round_ms:.3f} ms ({phases}), "
        f"idle {result.idle_share:.1%}"
    )


def profile_table(profile: RoundProfile) -> str:
    """Returns kernels by time as a table of at most 30 lines and a sum of the others."""
    head = f"  {profile.rounds} rounds of {profile.round_us:,.0f} µs, idle {profile.idle_share:.1%}"
    lines = [head, "  us/round  share  calls/round  kernel"]
    shown, rest = profile.kernels[:_SHOWN_KERNELS], profile.kernels[_SHOWN_KERNELS:]
    lines += [f"  {k.us:8.1f}  {k.share:5.1%}  {k.calls:11.1f}  {k.name[:100]}" for k in shown]
    if rest:
        us, share, calls = (sum(getattr(k, name) for k in rest) for name in ("us", "share", "calls"))
        lines.append(f"  {us:8.1f}  {share:5.1%}  {calls:11.1f}  {len(rest)} others")
    return "\n".join(lines)
