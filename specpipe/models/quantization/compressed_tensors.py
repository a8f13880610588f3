"""compressed-tensors: `config_groups` of targets and number formats (github.com/vllm-project/compressed-tensors)."""

from __future__ import annotations

from typing import Any, Literal

from specpipe.models.quantization.format_rules import (
    FormatConfig,
    FormatRules,
    GroupSize,
    LayoutRule,
    UnsupportedFormat,
    refuse_unless,
)
from specpipe.models.quantization.layouts import BLOCK, Fp8Layout, Granularity, Layout, PackedLayout
from specpipe.models.quantization.name_patterns import compressed_tensors_entry

_FP8_FORMATS = ("float-quantized", "naive-quantized")
_GRANULARITIES: dict[str, Granularity] = {"tensor": "tensor", "channel": "channel", "block": "block"}


class _Numbers(FormatConfig):
    """Number format of weights or activations (`QuantizationArgs`)."""

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: GroupSize | None = None
    block_structure: list[int] | str | None = None

    @property
    def granularity(self) -> str:
        """Entries that share a scale; it may be left out, and then follows from group_size."""
        if self.strategy is not None:
            return self.strategy
        return "tensor" if self.group_size is None else "channel" if self.group_size < 0 else "group"


class _Group(FormatConfig):
    """Layers and their number format (`QuantizationScheme`)."""

    targets: list[str]
    weights: _Numbers | None = None
    input_activations: _Numbers | None = None
    output_activations: _Numbers | None = None
    format: str | None = None


class _Config(FormatConfig):
    """`quantization_config` of config.json."""

    config_groups: dict[str, _Group | list[str]]
    format: str = "dense"
    quantization_status: str = "compressed"
    ignore: list[str] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


def parse_compressed_tensors(config: dict[str, Any]) -> FormatRules:
    """Returns the rules of a checkpoint. Raises UnsupportedFormat or pydantic's ValidationError."""
    parsed = _Config.model_validate(config)
    refuse_unless("quantization_status", parsed.quantization_status, "compressed")
    if parsed.sparsity_config and parsed.sparsity_config.get("format", "dense") != "dense":
        raise UnsupportedFormat(f"sparsity_config.format is {parsed.sparsity_config['format']}; expected dense weights")
    if parsed.transform_config and parsed.transform_config.get("config_groups"):
        raise UnsupportedFormat("transform_config rotates weights and activations; expected a checkpoint without it")
    rules = []
    for name, group in parsed.config_groups.items():
        if isinstance(group, list):
            raise UnsupportedFormat(f"config_groups.{name} is the name of a preset; expected its number formats")
        if group.weights is not None:
            rules.append(LayoutRule(targets=tuple(group.targets), layout=_layout(name, group, parsed.format)))
    # Names come before patterns, and patterns before classes.
    rules.sort(key=lambda rule: max(2 if t == "Linear" else int(t.startswith("re:")) for t in rule.targets))
    return FormatRules(
        method="compressed-tensors",
        rules=tuple(rules),
        ignored=tuple(parsed.ignore or ()),
        matcher=compressed_tensors_entry,
    )


def _layout(name: str, group: _Group, default_format: str) -> Layout:
    """Returns the layout of a group with quantised weights."""
    weights, inputs, place = group.weights, group.input_activations, f"config_groups.{name}"
    assert weights is not None
    if group.output_activations is not None:
        raise UnsupportedFormat(f"{place} quantises output_activations; expected none")
    stored = group.format or default_format
    if weights.type == "float" and weights.num_bits == 8:
        refuse_unless(f"{place}.format", stored, *_FP8_FORMATS)
        refuse_unless(f"{place}.weights.symmetric", weights.symmetric, True)
        refuse_unless(f"{place}.weights.strategy", weights.granularity, *_GRANULARITIES)
        if weights.granularity == "block":
            refuse_unless(
                f"{place}.weights.block_structure", weights.block_structure, [BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"
            )
        if inputs is not None:
            refuse_unless(f"{place}.input_activations", (inputs.type, inputs.num_bits), ("float", 8))
        return Fp8Layout(granularity=_GRANULARITIES[weights.granularity])
    refuse_unless(f"{place}.weights", (weights.type, weights.num_bits), ("float", 8), ("int", 4))
    refuse_unless(f"{place}.format", stored, "pack-quantized")
    refuse_unless(f"{place}.weights.strategy", weights.granularity, "group", "channel")
    if inputs is not None:
        raise UnsupportedFormat(
            f"{place} quantises input_activations of 4-bit weights; expected activations in 16 bits"
        )
    group_size = -1 if weights.granularity == "channel" else weights.group_size or -1
    return PackedLayout(group=group_size, symmetric=weights.symmetric)
