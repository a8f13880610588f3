"""Contents of a checkpoint: quantised layers, other tensors, scales of keys and values. Reads no weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from specpipe.errors import ModelError
from specpipe.models.quantization.compressed_tensors import parse_compressed_tensors
from specpipe.models.quantization.format_rules import FormatRules, UnsupportedFormat
from specpipe.models.quantization.fp8_formats import parse_fp8, parse_modelopt
from specpipe.models.quantization.integer_formats import parse_awq, parse_gptq
from specpipe.models.quantization.layouts import GroupLayout, Layout
from specpipe.models.quantization.mxfp4_experts import LABEL, METHOD, NAMES, expert_shapes, parse_mxfp4
from specpipe.models.quantization.stored_tensors import StoredTensor, read_stored_tensors
from specpipe.models.source import ModelSource

_PARSERS = {
    "compressed-tensors": parse_compressed_tensors,
    "fp8": parse_fp8,
    "modelopt": parse_modelopt,
    "awq": parse_awq,
    "gptq": parse_gptq,
    METHOD: parse_mxfp4,
}
_VALUES = {"weight_packed", "qweight"}
"""Last parts of names that only quantised layers have."""
_QUANTISED_DTYPES = {"F8_E4M3", "F8_E5M2", "I8", "U8"}
_KV_SCALE = re.compile(
    r"(?P<attention>.+?)(?:\.attn|\.k_proj|\.v_proj)?\.(?P<kind>k_scale|v_scale|kv_scale)"
    r"|(?P<older>.+)\.(?P<side>k|v)_proj\.output_scale"
)
_UNUSED = re.compile(r".*(rotary_emb\.inv_freq|\.q_scale|\.prob_output_scale)")
"""Tensors that need no reading: derived from the configuration, or for 8-bit attention of other runtimes."""

KvSide = Literal["k", "v"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedLayer:
    """A linear layer whose weight is stored quantised."""

    layout: Layout
    tensors: Mapping[str, StoredTensor]
    """By the last part of their names."""
    shape: tuple[int, int]
    """[outputs, inputs]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The tensors of a model folder by what they are. Names are those of the checkpoint."""

    method: str
    """Format of the quantised layers, such as "compressed-tensors"; "" without one."""
    layers: Mapping[str, QuantizedLayer]
    """Quantised layers by module name."""
    experts: Mapping[str, Mapping[str, StoredTensor]]
    """Tensors of experts in mxfp4 by module name and the last part of their names."""
    dense: Mapping[str, StoredTensor]
    """All other tensors of the model."""
    kv_scales: Mapping[tuple[str, KvSide], StoredTensor]
    """Scales of keys and values by attention module and side."""

    @property
    def quantised(self) -> bool:
        """True if any weight is."""
        return bool(self.layers or self.experts)

    @property
    def label(self) -> str:
        """Number format of the layers, such as "FP8 by channel, compressed-tensors"; "" without quantised layers."""
        labels = sorted({layer.layout.label() for layer in self.layers.values()} | ({LABEL} if self.experts else set()))
        return f"{' and '.join(labels)}, {self.method}" if labels else ""


def inspect_checkpoint(source: ModelSource) -> Checkpoint:
    """Reads configuration and headers of a model folder. Raises ModelError for a format that specpipe does not read."""
    rules = read_rules(source)
    stored = read_stored_tensors(source)
    modules = {
        name.rpartition(".")[0]
        for name, tensor in stored.items()
        if name.rpartition(".")[2] in _VALUES or (name.endswith(".weight") and tensor.dtype in _QUANTISED_DTYPES)
    }
    by_module: dict[str, dict[str, StoredTensor]] = {module: {} for module in modules}
    dense: dict[str, StoredTensor] = {}
    experts: dict[str, dict[str, StoredTensor]] = {}
    kv_scales: dict[tuple[str, KvSide], StoredTensor] = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if part in NAMES:
            experts.setdefault(module, {})[part] = tensor
        elif sides := _kv_sides(name):
            kv_scales |= dict.fromkeys(sides, tensor)
        elif module in by_module and part != "bias":
            by_module[module][part] = tensor
        elif not _UNUSED.fullmatch(name):
            dense[name] = tensor
    layers = {module: _layer(source, rules, module, tensors) for module, tensors in sorted(by_module.items())}
    for module, parts in experts.items():
        _check_experts(source, rules, module, parts)
    method = rules.method if rules else ""
    return Checkpoint(method=method, layers=layers, experts=experts, dense=dense, kv_scales=kv_scales)


def read_rules(source: ModelSource) -> FormatRules | None:
    """Returns the rules of a quantised checkpoint, from config.json or hf_quant_config.json; None for any other.

    Raises ModelError for a format or option that specpipe does not read.
    """
    folder = Path(source.path)
    config = _read_json(source, folder / "config.json")
    given = config.get("quantization_config") or config.get("compression_config")
    if given is None and (folder / "hf_quant_config.json").is_file():
        given = {"quant_method": "modelopt", **_read_json(source, folder / "hf_quant_config.json")}
    if given is None:
        return None
    if not isinstance(given, dict):
        found = type(given).__name__
        raise ModelError(f"model {source.name}: quantization_config of config.json is a {found}; expected an object")
    method = str(given.get("quant_method", "compressed-tensors" if "config_groups" in given else "")).lower()
    try:
        if method not in _PARSERS:
            raise UnsupportedFormat(f"quant_method is {method or 'missing'}; expected one of {', '.join(_PARSERS)}")
        return _PARSERS[method](given)
    except UnsupportedFormat as error:
        raise ModelError(f"model {source.name} is quantised in a way that specpipe does not read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]  # its place contains names of our classes where a key may have several types
        place = ".".join(part for part in map(str, first["loc"]) if not part.startswith("_"))
        raise ModelError(
            f"model {source.name}: its quantization_config ({method}) cannot be used: {place}: {first['msg']}"
        ) from None


def _read_json(source: ModelSource, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"model {source.name}: {path.name} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _kv_sides(name: str) -> list[tuple[str, KvSide]]:
    """Returns attention module and side of a scale of keys, values or both; empty for any other tensor."""
    found = _KV_SCALE.fullmatch(name)
    if found is None:
        return []
    attention = found["attention"] or found["older"]
    sides: list[KvSide] = (
        ["k", "v"]
        if found["kind"] == "kv_scale"
        else ["k" if (found["kind"] or found["side"]).startswith("k") else "v"]
    )
    return [(attention, side) for side in sides]


def _check_experts(
    source: ModelSource, rules: FormatRules | None, module: str, tensors: Mapping[str, StoredTensor]
) -> None:
    """Raises ModelError for experts in mxfp4 that do not fit their format, or without its configuration."""
    place = f"model {source.name}: experts {module}"
    if rules is None or rules.method != METHOD:
        found = rules.method if rules else "no quantization_config"
        raise ModelError(f"{place} are stored in mxfp4, and config.json has {found}; expected quant_method {METHOD}")
    try:
        expert_shapes(tensors)
    except ValueError as error:
        raise ModelError(f"{place} do not fit {LABEL}: {error}") from None


def _layer(
    source: ModelSource, rules: FormatRules | None, module: str, tensors: Mapping[str, StoredTensor]
) -> QuantizedLayer:
    """Returns a quantised layer. Raises ModelError for tensors that do not fit its format."""
    place = f"model {source.name}: layer {module}"
    if rules is None:
        raise ModelError(f"{place} is quantised, and config.json has no quantization_config; expected its format there")
    layout = rules.layout_of(module)
    if layout is None:
        raise ModelError(
            f"{place} is stored quantised, and its configuration ({rules.method}) excludes it; expected one of both"
        )
    if ".experts." in module and layout.bits != 8:
        raise ModelError(
            f"{place} is an expert in {layout.label()} ({rules.method}), which specpipe does not read; expected "
            "experts in 16 bits, fp8 or mxfp4"
        )
    layout = layout.named_as(tensors)
    missing = [name for name in layout.required if name not in tensors]
    unknown = [name for name in tensors if name not in (*layout.required, *layout.optional)]
    if missing or unknown:
        wrong = [f"lacks {', '.join(missing)}"] if missing else []
        wrong += [f"has {', '.join(unknown)}"] if unknown else []
        expected = f"{', '.join(layout.required)} for {layout.label()} ({rules.method})"
        raise ModelError(f"{place} {' and '.join(wrong)}; expected {expected}")
    try:
        shape = layout.shape(tensors)
        if isinstance(layout, GroupLayout):
            layout.check_order(tensors, shape[1])
        return QuantizedLayer(layout=layout, tensors=dict(tensors), shape=shape)
    except ValueError as error:
        raise ModelError(f"{place} does not fit {layout.label()} ({rules.method}): {error}") from None
