"""`specpipe bench engine start-up`: time to the first token."""

from __future__ import annotations

import dataclasses
import json
import time

import click

from specpipe.benchmark.bench_config import BenchQuantize, EngineBench
from specpipe.cli.bench.engine_decode import start_up_line
from specpipe.cli.bench.engine_options import integer_option, model_options, read_model_options
from specpipe.cli.options import json_option
from specpipe.core import KVDtypeChoice

_DEFAULTS = EngineBench()


@click.command("start-up", short_help="Time to the first token, by stage.")
@model_options
@integer_option("--slots", max(_DEFAULTS.batches), "Rows that the engine can run at once.")
@integer_option(
    "--k",
    max(_DEFAULTS.ks),
    "Largest number of draft tokens per round; graphs are captured for every K up to it.",
    least=0,
    most=len(_DEFAULTS.rates),
)
@json_option("Print one JSON object per line.")
def start_up(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
    slots: int,
    k: int,
    as_json: bool,
) -> None:
    """Measure the seconds from the start of this command to the first token of its engine.

    Weights are random and made on the device: reading checkpoints is not included.
    """
    began = time.perf_counter()
    models = read_model_options(target, draft, quantize, draft_quantize, kv_dtype, device)
    from specpipe.benchmark.start_up_time import measure_start_up

    bench = models.bench(batches=(slots,), ks=tuple(range(k + 1)))
    _, measured = measure_start_up(bench, began)
    click.echo(json.dumps({"start_up": dataclasses.asdict(measured)}) if as_json else start_up_line(measured))
