"""`specpipe bench kernels`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specpipe.benchmark.kernels import Timed

_SIGNS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


_OPS = (
    "rejection-sample",
    "sample",
    "sample-truncated",
    "apply-penalties",
    "token-logprobs",
    "sample-recovered",
    "sample-recovered-keyed",
    "rejection-sampler",
)


@click.command(short_help="Verification of drafts, from raw logits to tokens.")
@click.option(
    "--op",
    "ops",
    type=click.Choice(_OPS),
    multiple=True,
    default=_OPS[:1],
    help="What to time; options on acceptance and methods are for rejection-sample alone.",
)
@click.option("-b", "--batch", "batches", type=click.IntRange(1), multiple=True, default=(1, 16, 64, 256))
@click.option("-k", "ks", type=click.IntRange(1, 32), multiple=True, default=(3,), help="Draft tokens a request.")
@click.option("--vocab", "vocabs", type=click.IntRange(16), multiple=True, default=(128256,))
@click.option("--dtype", "dtypes", type=click.Choice(list(_SIGNS)), multiple=True, default=("bfloat16",))
@click.option(
    "--acceptance",
    "acceptances",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    multiple=True,
    default=(0.2, 0.7, 0.9),
    help="Probability that a draft is accepted, each position.",
)
@click.option(
    "--method",
    "methods",
    type=click.Choice(["standard", "block", "invariant", "synthetic"]),
    multiple=True,
    default=("standard",),
)
@click.option("--draft-lse/--no-draft-lse", default=True, help="Give the log-sum-exps that drafting left, or not.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def kernels(device: str, as_json: bool, ops: tuple[str, ...], **options: object) -> None:
    """Time `rejection_sample`, or other operations of sampling, over every combination of the options.

    Each option may be given several times. On a GPU a CUDA graph of calls on different inputs, together larger than the
    L2 cache, is replayed; on a CPU the reference runs. Times are microseconds a call; "of copy" compares the rows that
    must be read, once, with the bandwidth of a large copy.
    """
    import torch

    from specpipe.benchmark.kernel_ops import sweep_ops
    from specpipe.benchmark.kernels import KernelBench, sweep
    from specpipe.errors import MachineError

    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("--device cuda, but this machine has no usable GPU; expected one, or --device cpu")
    bench = KernelBench(device=device, **options)  # type: ignore[arg-type]  # its fields, checked by click
    others = tuple(op for op in ops if op != _OPS[0])
    if _OPS[0] in ops:
        _show(sweep(bench), "method     accept length", as_json)
    if others:
        _show(sweep_ops(bench, others), "operation              ", as_json)


def _show(measured: Iterable[Timed], what: str, as_json: bool) -> None:
    import dataclasses
    import json

    if not as_json:
        click.echo(f"{'B':>4} {'K':>3} {'V':>7} dtype {what}   median µs   p10-p90 of copy")
    for m in measured:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(m)))
            continue
        spread = f"{m.p10_us:.1f}-{m.p90_us:.1f}"
        click.echo(
            f"{m.batch:>4} {m.k:>3} {m.vocab:>7} {_SIGNS[m.dtype]:<5} {m.label}"
            f" {m.median_us:>11.1f} {spread:>9} {m.of_copy:>7.0%}"
        )
