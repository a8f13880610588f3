"""Places of a checkpoint's tensors in a model of transformers, checked before weights are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from specpipe.engine.loading.tensor_reader import DTYPES
from specpipe.errors import ModelError
from specpipe.models.quantization.checkpoint import Checkpoint, KvSide
from specpipe.models.quantization.mxfp4_experts import WEIGHTS, expert_shapes

_SHOWN = 3  # names in a message
_FLOATS = frozenset({"F64", "F32", "BF16", "F16"})  # dtypes of weights that are not quantised


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlaces:
    """Names in the model for names in the checkpoint."""

    layers: Mapping[str, str]
    """Quantised layers: module names."""
    experts: Mapping[str, str]
    """Experts in mxfp4: module names."""
    merged: Mapping[str, Mapping[ExpertPart, str]]
    """Experts' modules whose weights are stored as quantised layers: their names in the checkpoint."""
    dense: Mapping[str, str]
    """Other tensors: names of parameters and buffers."""
    kv_scales: Mapping[tuple[str, KvSide], str]
    """Attention modules for the keys of `Checkpoint.kv_scales`."""


PartName = Literal["gate", "up", "down"]
EXPERT_PARTS: tuple[PartName, ...] = ("gate", "up", "down")


class ExpertPart(NamedTuple):
    """One linear layer of one expert."""

    expert: int
    part: PartName


_EXPERT_LAYER = re.compile(r"(?P<module>.+\.experts)\.(?P<expert>\d+)\.(?P<part>gate_proj|up_proj|down_proj|w1|w2|w3)")
_PARTS: Mapping[str, PartName] = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}


class CheckpointNames:
    """Translates names of a checkpoint to those of a model, as transformers does when it loads one."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming

        transforms = get_model_conversion_mapping(model, add_legacy=False)
        self.renames_only = all(isinstance(transform, WeightRenaming) for transform in transforms)
        """False if transformers merges or splits weights of this family."""
        self._renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
        merged = (t for t in transforms if not isinstance(t, WeightRenaming))
        self.merges_experts_only = all(".experts." in target for t in merged for target in t.target_patterns)
        """True if it merges nothing but linear layers of experts."""
        self.known = model.state_dict()
        self._prefix: str = getattr(model, "base_model_prefix", "")
        unused: Any = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
        self._optional = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
        self._ignored = [re.compile(pattern) for pattern in unused]

    def tensor(self, name: str) -> str:
        """Returns the model's name for a tensor of the checkpoint."""
        from transformers.core_model_loading import rename_source_key

        renamed: str = rename_source_key(name, self._renamings, [], self._prefix, self.known)[0]
        return renamed

    def ignores(self, name: str) -> bool:
        """Returns True for a tensor without a place that the family leaves out, such as DeepSeek's layers of MTP."""
        return name not in self.known and any(pattern.search(name) for pattern in self._ignored)

    def may_be_missing(self, name: str) -> bool:
        """Returns True for a tensor of the model that the family does without."""
        return any(re.search(pattern, name) for pattern in self._optional)

    def module(self, name: str) -> str:
        """Returns the model's name for a module with a weight."""
        return self.tensor(f"{name}.weight").removesuffix(".weight")


def find_places(model: Any, checkpoint: Checkpoint, name: str) -> TensorPlaces:
    """Returns the places of all tensors. model: a skeleton; name: the model's, for messages.

    Raises ModelError for missing, unexpected and misshapen tensors, with their names, files, shapes and dtypes.
    Unexpected ones are an error in quantised checkpoints alone: they may belong to a format that is misunderstood. In
    others, missing ones are found by transformers where it merges weights of the family.
    """
    names = CheckpointNames(model)
    if checkpoint.quantised and not names.merges_experts_only:
        raise ModelError(
            f"model {name}: transformers merges weights of {type(model).__name__} at load, which specpipe cannot do "
            "with quantised ones; expected a checkpoint in 16 bits"
        )
    expected, modules = model.state_dict(), dict(model.named_modules())
    merged = merged_experts(names, checkpoint)
    in_experts = {stored for parts in merged.values() for stored in parts.values()}
    merged = {module: parts for module, parts in merged.items() if not names.ignores(f"{module}.weight")}
    layers = {stored: names.module(stored) for stored in checkpoint.layers if stored not in in_experts}
    layers = {stored: place for stored, place in layers.items() if not names.ignores(f"{place}.weight")}
    experts = {stored: names.tensor(f"{stored}.down_proj").removesuffix(".down_proj") for stored in checkpoint.experts}
    dense = {stored: names.tensor(stored) for stored in checkpoint.dense}
    quantised = {f"{module}.weight" for module in layers.values()}
    whole = [m for m, parts in merged.items() if m in modules and len(parts) == 3 * modules[m].num_experts]
    quantised |= {f"{module}.{weight}" for module in (*whole, *experts.values()) for weight in WEIGHTS}
    unexpected = [s for s, n in dense.items() if n not in expected and not names.ignores(n)]
    unexpected += [s for s, n in layers.items() if f"{n}.weight" not in expected]
    dense = {stored: place for stored, place in dense.items() if place in expected}
    tied = model.all_tied_weights_keys
    present = quantised | set(dense.values())
    missing = [n for n in expected if n not in present and not (n in tied and tied[n] in present)]
    if not checkpoint.quantised:
        missing = [n for n in missing if names.renames_only and not names.may_be_missing(n)]
    wrong, dtypes = _misfits(checkpoint, dense, layers, expected, modules)
    wrong += [s for s, n in experts.items() if not _fits(modules.get(n), expert_shapes(checkpoint.experts[s]))]
    for module in whole:
        shapes = {part: checkpoint.layers[stored].shape for part, stored in merged[module].items()}
        wrong += [] if _fits_merged(modules[module], shapes) else [module]
    problems = [
        ("lacks", missing),
        ("has other shapes or kinds of layers:", wrong),
        ("has other dtypes:", dtypes),
    ]
    unexpected += [m for m in (*merged, *experts.values()) if m not in modules]
    problems += [("has unexpected", unexpected)] if checkpoint.quantised else []
    found = [f"{what} {_listed(which)}" for what, which in problems if which]
    if found:
        raise ModelError(
            f"model {name}: its weights do not fit its config.json: it {'; it '.join(found)}; expected a complete "
            "checkpoint of a causal language model: copy or download config.json and weights again, from one place"
        )
    kv_scales = {key: names.module(f"{key[0]}.k_proj").removesuffix(".k_proj") for key in checkpoint.kv_scales}
    return TensorPlaces(
        layers=layers,
        experts=experts,
        merged=merged,
        dense=dense,
        kv_scales={k: n for k, n in kv_scales.items() if n in modules},
    )


def merged_experts(names: CheckpointNames, checkpoint: Checkpoint) -> dict[str, dict[ExpertPart, str]]:
    """Returns the quantised layers that are parts of experts' modules, for families whose experts are merged."""
    if names.renames_only:
        return {}
    merged: dict[str, dict[ExpertPart, str]] = {}
    for stored in checkpoint.layers:
        if found := _EXPERT_LAYER.fullmatch(stored):
            parts = merged.setdefault(found["module"], {})
            parts[ExpertPart(int(found["expert"]), _PARTS[found["part"]])] = stored
    return {names.tensor(f"{module}.down_proj").removesuffix(".down_proj"): parts for module, parts in merged.items()}


def _fits(module: Any, shapes: Mapping[str, tuple[int, int, int]]) -> bool:
    """Returns True for an experts' module with these weights, [E, outputs, inputs] each."""
    return module is not None and all(weight_shape(module, name) == shape for name, shape in shapes.items())


def _fits_merged(module: Any, shapes: Mapping[ExpertPart, tuple[int, int]]) -> bool:
    """Returns True for an experts' module of these linear layers."""
    _, outputs, inputs = weight_shape(module, "gate_up_proj")
    expected = {"gate": (outputs // 2, inputs), "up": (outputs // 2, inputs), "down": (inputs, outputs // 2)}
    numbers = {part.expert for part in shapes} == set(range(module.num_experts))
    return numbers and all(shape == expected[part.part] for part, shape in shapes.items())


def weight_shape(module: Any, name: str) -> tuple[int, int, int]:
    """Returns [E, outputs, inputs] of a dense weight of transformers' experts module."""
    experts, rows, columns = getattr(module, name).shape
    return (experts, columns, rows) if module.is_transposed else (experts, rows, columns)


def _linear_shape(module: nn.Module) -> list[int] | str:
    """Returns [outputs, inputs] of a linear layer, or the class of any other module."""
    return [module.out_features, module.in_features] if type(module) is nn.Linear else type(module).__name__


def _misfits(
    checkpoint: Checkpoint,
    dense: Mapping[str, str],
    layers: Mapping[str, str],
    expected: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
) -> tuple[list[str], list[str]]:
    """Returns dense tensors and quantised layers of wrong shapes, and dense tensors of wrong dtypes, as described for
    messages: what is stored, in which file, and what was expected."""
    shapes, dtypes = [], []
    for stored, place in dense.items():
        tensor, wanted = checkpoint.dense[stored], expected[place]
        found = f"{stored} {tensor.dtype} {list(tensor.shape)} in {Path(tensor.file).name} (expected"
        if tensor.shape != tuple(wanted.shape):
            shapes.append(f"{found} {list(wanted.shape)})")
        if not _fits_dtype(tensor.dtype, wanted):
            dtypes.append(f"{found} {'floating-point' if wanted.is_floating_point() else 'integers'})")
    for stored, place in layers.items():
        layer = checkpoint.layers[stored]
        if place in modules and (wanted_shape := _linear_shape(modules[place])) != list(layer.shape):
            file = Path(layer.tensors[layer.layout.required[0]].file).name
            shapes.append(f"{stored} {list(layer.shape)} in {file} (expected {wanted_shape})")
    return shapes, dtypes


def _fits_dtype(dtype: str, expected: Tensor) -> bool:
    """Returns True if both are floating-point, or neither. dtype: as safetensors names it."""
    return dtype in DTYPES and (dtype in _FLOATS) == expected.is_floating_point()


def _listed(names: Iterable[str]) -> str:
    """Returns the first names and the number of others."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
