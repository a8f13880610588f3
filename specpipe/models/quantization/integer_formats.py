"""4-bit formats beside compressed-tensors: AWQ and GPTQ."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from specpipe.models.quantization.format_rules import (
    FormatConfig,
    FormatRules,
    GroupSize,
    LayoutRule,
    UnsupportedFormat,
    refuse_unless,
)
from specpipe.models.quantization.layouts import AwqLayout, GptqLayout
from specpipe.models.quantization.name_patterns import substring_entry, transformers_entry

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


class _AwqConfig(FormatConfig):
    """`quantization_config` of `quant_method: awq`."""

    bits: int = Field(validation_alias=AliasChoices("bits", "w_bit"))
    group_size: GroupSize = Field(validation_alias=AliasChoices("group_size", "q_group_size"))
    zero_point: bool = True
    version: str = "gemm"
    modules_to_not_convert: list[str] | None = None


def parse_awq(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint. Raises UnsupportedFormat or pydantic's ValidationError."""
    parsed = _AwqConfig.model_validate(config)
    refuse_unless("bits", parsed.bits, 4)
    refuse_unless("version", parsed.version.lower(), "gemm")
    refuse_unless("zero_point", parsed.zero_point, True)
    return FormatRules(
        method="awq",
        rules=(LayoutRule(targets=("",), layout=AwqLayout(group=parsed.group_size, symmetric=False)),),
        ignored=tuple(parsed.modules_to_not_convert or ()),
        matcher=substring_entry,
    )


class _GptqConfig(FormatConfig):
    """`quantization_config` of `quant_method: gptq`."""

    bits: int
    group_size: GroupSize
    sym: bool = True
    checkpoint_format: str = Field("gptq", validation_alias=AliasChoices("checkpoint_format", "format"))
    dynamic: dict[str, Any] | None = None


def parse_gptq(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint. Raises UnsupportedFormat or pydantic's ValidationError.

    `desc_act` is no reason to refuse one: the order of groups is that of `g_idx`, read with the weights.
    """
    parsed = _GptqConfig.model_validate(config)
    refuse_unless("bits", parsed.bits, 4)
    refuse_unless("checkpoint_format", parsed.checkpoint_format, *_ZERO_OFFSETS)
    overrides = parsed.dynamic or {}
    if changed := [pattern for pattern, values in overrides.items() if not pattern.startswith("-:") and values]:
        raise UnsupportedFormat(
            f"dynamic changes the number format of {changed[0]}; expected one format for all layers"
        )
    layout = GptqLayout(
        group=parsed.group_size, symmetric=parsed.sym, zero_offset=_ZERO_OFFSETS[parsed.checkpoint_format]
    )
    return FormatRules(
        method="gptq",
        rules=(LayoutRule(targets=(r".*",), layout=layout),),
        ignored=tuple(pattern.removeprefix("-:") for pattern in overrides if pattern.startswith("-:")),
        matcher=transformers_entry,
    )
