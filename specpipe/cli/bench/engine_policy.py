"""`specpipe bench engine policy`: complete jobs under a policy and under every fixed K."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from specpipe.benchmark.bench_config import ACCEPTANCE, BenchQuantize, EngineBench, PolicyComparison
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import KVDtypeChoice
from specpipe.errors import JobError

if TYPE_CHECKING:
    from specpipe.benchmark.policy_comparison import (
        ComparisonResult,
        LevelResult,
        MeasuredJob,
        RoundTimes,
        SequenceResult,
        SwitchResult,
    )

_DEFAULTS = PolicyComparison()


@click.command(short_help="Complete jobs under a policy against fixed K.")
@model_options
@click.option(
    "--policy",
    "policy_name",
    type=click.Choice(["goodput", "queue_threshold"]),
    default=_DEFAULTS.policy,
    show_default=True,
    help="Policy to compare with fixed K.",
)
@click.option(
    "--k",
    "ks",
    multiple=True,
    type=click.IntRange(0, 32),
    default=[k for k in _DEFAULTS.ks if k],
    show_default=True,
    help="Fixed K to compare with, besides 0; the largest is also the policy's maximum. May be given several times.",
)
@click.option(
    "--acceptance",
    multiple=True,
    metavar="LEVEL",
    help=f"Synthetic acceptance: {', '.join(ACCEPTANCE)}. May be given several times.  [default: all]",
)
@integer_option("--slots", max(EngineBench().batches), "Rows run at once.")
@integer_option("--rows", _DEFAULTS.rows, "Rows of a job.")
@integer_option("--shard-rows", _DEFAULTS.shard_rows, "Rows of a shard.")
@integer_option("--longest", _DEFAULTS.longest, "Longest prompt, and longest output, in tokens.", least=2)
@json_option("Print one JSON object per line.")
def policy(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
    policy_name: str,
    ks: tuple[int, ...],
    acceptance: tuple[str, ...],
    slots: int,
    rows: int,
    shard_rows: int,
    longest: int,
    as_json: bool,
) -> None:
    """Compare complete jobs under a policy with the same jobs under every fixed K.

    A job has rows of 32 to --longest tokens in and out and runs until its last row ends. Beyond the third draft
    position, the last conditional acceptance rate is repeated. At middle acceptance, speculation is also switched off
    and on while all slots are full.

    \b
      specpipe bench engine policy --slots 16 --rows 64 --shard-rows 16 --acceptance middle --k 2
    """
    models = read_model_options(target, draft, quantize, draft_quantize, kv_dtype, device)
    from specpipe.benchmark.policy_comparison import compare_policy, extended_rates
    from specpipe.benchmark.synthetic_engine import build_synthetic_engine

    if unknown := [level for level in acceptance if level not in ACCEPTANCE]:
        raise JobError(f"--acceptance is {unknown[0]!r}; expected one of {', '.join(ACCEPTANCE)}")
    comparison = PolicyComparison(
        policy=policy_name,
        ks=tuple(sorted({0, *ks})),
        acceptance=acceptance or tuple(ACCEPTANCE),
        rows=rows,
        shard_rows=shard_rows,
        shortest=min(_DEFAULTS.shortest, longest),
        longest=longest,
    )
    bench = models.bench(
        batches=(slots,),
        ks=comparison.ks,
        rates=extended_rates((1.0,), max(comparison.ks)),
        max_model_len=2 * longest + 2,
        every_k=True,
        prefix_sharing=False,  # jobs repeat the same rows
    )
    for result in compare_policy(build_synthetic_engine(bench), comparison):
        click.echo(json.dumps(result.to_dict()) if as_json else result_line(result))


def result_line(result: ComparisonResult) -> str:
    """Returns a result as one line of text."""
    from specpipe.benchmark.policy_comparison import LevelResult, MeasuredJob, RoundTimes, SequenceResult

    if isinstance(result, RoundTimes):
        return _round_times_line(result)
    if isinstance(result, MeasuredJob):
        return _job_line(result)
    if isinstance(result, LevelResult):
        return _level_line(result)
    if isinstance(result, SequenceResult):
        return _sequence_line(result)
    return _switch_line(result)


def _round_times_line(result: RoundTimes) -> str:
    rounds = (
        f"{point.proposer} K={point.k} at {point.running} rows {1e3 * point.seconds / point.rounds:.2f} ms"
        for point in result.profile.rounds
    )
    return "rounds at the start: " + ", ".join(rounds)


def _job_line(job: MeasuredJob) -> str:
    who = job.policy if job.k is None else f"K={job.k}"
    result = job.result
    rounds = ", ".join(f"K={k}: {count}" for k, count in result.k_rounds.items())
    if late := [*result.late_kernels, *["a graph"] * result.late_graphs]:
        rounds += f"   compiled or captured while it ran: {', '.join(late)}"
    return (
        f"{job.acceptance:<8} {who:<16} {result.tokens_per_s:10,.0f} tok/s   acceptance length "
        f"{result.verified.acceptance_length:.2f}   rounds {rounds}"
    )


def _level_line(level: LevelResult) -> str:
    return (
        f"{level.acceptance}: {level.share_of_best_fixed:.1%} of the best fixed K ({level.best_fixed_k}), "
        f"{level.share_of_plain:.1%} of plain decoding"
    )


def _sequence_line(result: SequenceResult) -> str:
    return (
        f"{' → '.join(result.sequence)}: {result.seconds:.1f} s, "
        f"{result.share_of_best_fixed:.1%} of the speed of the best fixed K ({result.best_fixed_k})"
    )


def _switch_line(result: SwitchResult) -> str:
    switch = result.switch
    return (
        f"speculation {switch.to} (K={result.k}): {switch.before:,.0f} → {switch.after:,.0f} tok/s, worst 2 s "
        f"{switch.worst:,.0f}, {switch.share_of_better:.1%} of the better side, {switch.share_of_expected:.1%} of the "
        "tokens expected from both sides"
    )
