"""`specpipe bench kernels`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from specpipe.cli.options import json_option

if TYPE_CHECKING:
    from specpipe.benchmark.kernels import Timed
    from specpipe.benchmark.products import ProductMeasured

_SHORT_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_VERIFICATION = "rejection-sample"
_PRODUCT = "product"
_OPERATIONS = (
    _VERIFICATION,
    "sample",
    "sample-truncated",
    "apply-penalties",
    "token-logprobs",
    "score-tokens",
    "sample-recovered",
    "sample-recovered-keyed",
    "rejection-sampler",
    "lookup-suffix",
    _PRODUCT,
)


@click.command(short_help="Verification of drafts and other kernels of a round.")
@click.option(
    "--op",
    "ops",
    type=click.Choice(_OPERATIONS),
    multiple=True,
    default=(_VERIFICATION,),
    show_default=True,
    help=f"Operation to time. --acceptance, --method and --draft-lse apply to {_VERIFICATION} only.",
)
@click.option(
    "-b",
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 16, 64, 256),
    show_default=True,
    help="Rows of a batch.",
)
@click.option(
    "-k",
    "ks",
    type=click.IntRange(1, 32),
    multiple=True,
    default=(3,),
    show_default=True,
    help="Draft tokens per row.",
)
@click.option(
    "--vocab",
    "vocabs",
    type=click.IntRange(16),
    multiple=True,
    default=(128256,),
    show_default=True,
    help="Size of the vocabulary.",
)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(list(_SHORT_DTYPES)),
    multiple=True,
    default=("bfloat16",),
    show_default=True,
    help="Number format of the logits.",
)
@click.option(
    "--acceptance",
    "acceptances",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    multiple=True,
    default=(0.2, 0.7, 0.9),
    show_default=True,
    help="Probability that a draft token is accepted, at each position.",
)
@click.option(
    "--method",
    "methods",
    type=click.Choice(["standard", "block", "invariant", "synthetic"]),
    multiple=True,
    default=("standard",),
    show_default=True,
    help="Verification method.",
)
@click.option(
    "--draft-lse/--no-draft-lse",
    default=True,
    show_default=True,
    help="Whether verification receives the log-sum-exps that drafting computed.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("llama-3.1-8b",),
    show_default=True,
    help=f"Shape of a model whose layers' products {_PRODUCT} times, with weights in 16, 8 and 4 bits.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    multiple=True,
    default=tuple(1 << i for i in range(13)),
    show_default=True,
    help=f"Tokens that {_PRODUCT} multiplies.",
)
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="Device to measure."
)
@json_option("Print one JSON object per line.")
def kernels(
    device: str,
    as_json: bool,
    ops: tuple[str, ...],
    models: tuple[str, ...],
    tokens: tuple[int, ...],
    **options: object,
) -> None:
    """Time verification of drafts, or other operations of a round, for every combination of the options.

    Most options may be given several times. On a GPU, a CUDA graph of calls is replayed, whose inputs together are
    larger than the L2 cache; on a CPU, the reference implementation runs. Times are microseconds per call. "of copy" is
    the bandwidth of reading the inputs once, as a share of the bandwidth of a large copy.
    """
    import torch

    from specpipe.benchmark.kernel_ops import sweep_ops
    from specpipe.benchmark.kernels import KernelBench, sweep
    from specpipe.benchmark.products import ProductBench, sweep_products
    from specpipe.errors import MachineError

    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("--device is cuda, but torch finds no GPU on this machine; use --device cpu")
    bench = KernelBench(device=device, **options)  # type: ignore[arg-type]  # its fields, checked by click
    others = tuple(op for op in ops if op not in (_VERIFICATION, _PRODUCT))
    if _VERIFICATION in ops:
        _print_times(sweep(bench), "method     accept length", as_json)
    if others:
        _print_times(sweep_ops(bench, others), "operation              ", as_json)
    if _PRODUCT in ops:
        _print_products(sweep_products(ProductBench(models=models, tokens=tokens, device=device)), as_json)


def _print_times(measured: Iterable[Timed], label_heading: str, as_json: bool) -> None:
    import dataclasses
    import json

    if not as_json:
        click.echo(f"{'B':>4} {'K':>3} {'V':>7} dtype {label_heading}   median µs   p10-p90 of copy")
    for m in measured:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(m)))
            continue
        spread = f"{m.p10_us:.1f}-{m.p90_us:.1f}"
        click.echo(
            f"{m.batch:>4} {m.k:>3} {m.vocab:>7} {_SHORT_DTYPES[m.dtype]:<5} {m.label}"
            f" {m.median_us:>11.1f} {spread:>9} {m.of_copy:>7.0%}"
        )


def _print_products(measured: Iterable[ProductMeasured], as_json: bool) -> None:
    import dataclasses
    import json

    if not as_json:
        click.echo(
            "model          product     N     K tokens   µs with weights in 16 bits, and in others (times as fast)"
        )
    for m in measured:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(m)))
            continue
        base = m.us["none"]
        others = "".join(f"   {name} {us:.1f} ({base / us:.2f})" for name, us in m.us.items() if name != "none")
        click.echo(f"{m.model:<14} {m.product:<7} {m.n:>5} {m.k:>5} {m.tokens:>6} {base:>9.1f}{others}")
