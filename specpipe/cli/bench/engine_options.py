"""Options that commands of `specpipe bench engine` share: models, device numbers and --json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import click

from specpipe.benchmark.bench_config import BenchQuantize, EngineBench
from specpipe.cli.options import Command
from specpipe.core import DeviceName, DtypeName, KVDtypeChoice, resolve_dtype
from specpipe.errors import MachineError

_DEFAULTS = EngineBench()


class ModelOptions(NamedTuple):
    """Models and device, as given on the command line."""

    target: str
    draft: str
    quantize: BenchQuantize
    draft_quantize: BenchQuantize
    kv_dtype: KVDtypeChoice
    device: DeviceName

    @property
    def dtype(self) -> DtypeName:
        """Number format of weights and activations."""
        return resolve_dtype("auto", self.device)

    def bench(self, **parameters: Any) -> EngineBench:
        """Returns a measurement of these models; `parameters` are other fields of EngineBench."""
        return EngineBench(
            target=self.target,
            draft=self.draft,
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            draft_quantize=self.draft_quantize,
            kv_dtype=self.kv_dtype,
            **parameters,
        )


def model_options(command: Command) -> Command:
    """Adds options of models, number formats and the device; read them with `read_model_options`."""
    for option in (
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "cuda"]),
            default="auto",
            show_default=True,
            help="Device to measure; auto is the GPU if there is one.",
        ),
        click.option(
            "--draft-quantize",
            type=click.Choice(get_args(BenchQuantize)),
            default=_DEFAULTS.draft_quantize,
            show_default=True,
            help="Number format of the draft's weights.",
        ),
        click.option(
            "--quantize",
            type=click.Choice(get_args(BenchQuantize)),
            default=_DEFAULTS.quantize,
            show_default=True,
            help="Number format of the target's weights: 16 bits, fp8 by channel or block, 4 bits, experts in mxfp4.",
        ),
        click.option(
            "--kv-dtype",
            type=click.Choice(["auto", "fp8"]),
            default="auto",
            show_default=True,
            help="Number format of KV pages; auto is that of the activations.",
        ),
        click.option(
            "--draft", metavar="SHAPE", default=_DEFAULTS.draft, show_default=True, help="Shape of the draft model."
        ),
        click.option(
            "--target", metavar="SHAPE", default=_DEFAULTS.target, show_default=True, help="Shape of the target model."
        ),
    ):
        command = option(command)
    return command


def read_model_options(
    target: str,
    draft: str,
    quantize: BenchQuantize,
    draft_quantize: BenchQuantize,
    kv_dtype: KVDtypeChoice,
    device: str,
) -> ModelOptions:
    """Returns the options of `model_options` with the device resolved.

    Raises MachineError where the GPU is missing that --device, or the default shape, is for.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if not has_gpu and (device == "cuda" or (device == "auto" and target == _DEFAULTS.target)):
        raise MachineError(
            f"torch finds no GPU on this machine, and shapes such as {_DEFAULTS.target} need one; run `specpipe "
            "doctor` for the reason. On a CPU: --device cpu --target small --draft small"
        )
    on_gpu = has_gpu and device != "cpu"
    return ModelOptions(target, draft, quantize, draft_quantize, kv_dtype, "cuda" if on_gpu else "cpu")


def integer_option(
    name: str, default: int, help: str, *, least: int = 1, most: int | None = None
) -> Callable[[Command], Command]:
    """Returns an option for a number from `least` to `most`, with its default shown."""
    return click.option(name, default=default, show_default=True, type=click.IntRange(least, most), help=help)
