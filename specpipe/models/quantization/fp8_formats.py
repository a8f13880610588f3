"""8-bit formats beside compressed-tensors: `quant_method: fp8` (transformers, DeepSeek, Qwen) and modelopt (NVIDIA)."""

from __future__ import annotations

from typing import Any

from specpipe.models.quantization.format_rules import FormatConfig, FormatRules, LayoutRule, refuse_unless
from specpipe.models.quantization.layouts import BLOCK, Fp8Layout, Granularity
from specpipe.models.quantization.name_patterns import modelopt_entry, transformers_entry

_MODELOPT: dict[str, Granularity] = {"FP8": "tensor", "FP8_PER_CHANNEL_PER_TOKEN": "channel", "FP8_PB_WO": "block"}
_EVERY_NAME = (r".*",)


class _Fp8Config(FormatConfig):
    """`quantization_config` of `quant_method: fp8`."""

    fmt: str = "e4m3"
    activation_scheme: str = "dynamic"
    weight_block_size: list[int] | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


def parse_fp8(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint. Raises UnsupportedFormat or pydantic's ValidationError.

    Scales are called `weight_scale_inv`; those of a whole tensor `weight_scale` by some writers.
    """
    parsed = _Fp8Config.model_validate(config)
    refuse_unless("fmt", parsed.fmt, "e4m3", "float8_e4m3fn")
    refuse_unless("activation_scheme", parsed.activation_scheme, "dynamic", "static")
    if parsed.weight_block_size is None:
        layout = Fp8Layout(granularity="tensor", other_scale="weight_scale_inv")
    else:
        refuse_unless("weight_block_size", parsed.weight_block_size, [BLOCK, BLOCK])
        layout = Fp8Layout(granularity="block", scale="weight_scale_inv")
    return FormatRules(
        method="fp8",
        rules=(LayoutRule(targets=_EVERY_NAME, layout=layout),),
        ignored=tuple(parsed.modules_to_not_convert or parsed.ignored_layers or ()),
        matcher=transformers_entry,
    )


class _ModeloptConfig(FormatConfig):
    """`quantization` of hf_quant_config.json, or `quantization_config` of config.json with `ignore`."""

    quant_algo: str
    exclude_modules: list[str] | None = None
    ignore: list[str] | None = None


def parse_modelopt(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint. Raises UnsupportedFormat or pydantic's ValidationError."""
    parsed = _ModeloptConfig.model_validate(config.get("quantization") or config)
    algorithm = parsed.quant_algo.upper()
    refuse_unless("quant_algo", algorithm, *_MODELOPT)
    return FormatRules(
        method="modelopt",
        rules=(LayoutRule(targets=("*",), layout=Fp8Layout(granularity=_MODELOPT[algorithm])),),
        ignored=tuple(parsed.exclude_modules or parsed.ignore or ()),
        matcher=modelopt_entry,
    )
