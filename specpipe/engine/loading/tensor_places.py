"""Places of a checkpoint's tensors in a model of transformers, checked before weights are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from specpipe.errors import ModelError
from specpipe.models.quantization.checkpoint import Checkpoint, KvSide

_SHOWN = 3  # names in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlaces:
    """Names in the model for names in the checkpoint."""

    layers: Mapping[str, str]
    """Quantised layers: module names."""
    dense: Mapping[str, str]
    """Other tensors: names of parameters and buffers."""
    kv_scales: Mapping[tuple[str, KvSide], str]
    """Attention modules for the keys of `Checkpoint.kv_scales`."""


class CheckpointNames:
    """Translates names of a checkpoint to those of a model, as transformers does when it loads one."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming

        transforms = get_model_conversion_mapping(model, add_legacy=False)
        self.renames_only = all(isinstance(transform, WeightRenaming) for transform in transforms)
        """False if transformers merges or splits weights of this family."""
        self._renamings = transforms if self.renames_only else []
        self.known = model.state_dict()
        self._prefix: str = getattr(model, "base_model_prefix", "")

    def tensor(self, name: str) -> str:
        """Returns the model's name for a tensor of the checkpoint."""
        from transformers.core_model_loading import rename_source_key

        renamed: str = rename_source_key(name, self._renamings, [], self._prefix, self.known)[0]
        return renamed

    def module(self, name: str) -> str:
        """Returns the model's name for a module with a weight."""
        return self.tensor(f"{name}.weight").removesuffix(".weight")


def find_places(model: Any, checkpoint: Checkpoint, name: str) -> TensorPlaces:
    """Returns the places of all tensors. model: a skeleton; name: the model's, for messages.

    Raises ModelError with the names of missing, unexpected and misshapen tensors. Unexpected ones are an error in
    quantised checkpoints alone: they may belong to a format that is misunderstood.
    """
    names = CheckpointNames(model)
    if not names.renames_only:
        raise ModelError(
            f"model {name}: transformers merges weights of {type(model).__name__} at load, which specpipe cannot do "
            "with quantised ones; expected a checkpoint in 16 bits"
        )
    expected, modules = model.state_dict(), dict(model.named_modules())
    layers = {stored: names.module(stored) for stored in checkpoint.layers}
    dense = {stored: names.tensor(stored) for stored in checkpoint.dense}
    quantised = {f"{module}.weight" for module in layers.values()}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    unexpected = [s for s, n in dense.items() if n not in expected and not any(p.search(n) for p in ignored)]
    unexpected += [s for s, n in layers.items() if f"{n}.weight" not in expected]
    dense = {stored: place for stored, place in dense.items() if place in expected}
    tied = model.all_tied_weights_keys
    present = quantised | set(dense.values())
    missing = [n for n in expected if n not in present and not (n in tied and tied[n] in present)]
    wrong = [s for s, n in dense.items() if checkpoint.dense[s].shape != tuple(expected[n].shape)]
    wrong += [s for s, n in layers.items() if n in modules and not _is_linear(modules[n], checkpoint.layers[s].shape)]
    problems = [("lacks", missing), ("has other shapes or kinds of layers for", wrong)]
    problems += [("has unexpected", unexpected)] if checkpoint.layers else []
    found = [f"{what} {_listed(which)}" for what, which in problems if which]
    if found:
        raise ModelError(
            f"model {name}: its weights do not fit its config.json: it {'; it '.join(found)}; expected a complete "
            "checkpoint of a causal language model"
        )
    kv_scales = {key: names.module(f"{key[0]}.k_proj").removesuffix(".k_proj") for key in checkpoint.kv_scales}
    return TensorPlaces(layers=layers, dense=dense, kv_scales={k: n for k, n in kv_scales.items() if n in modules})


def _is_linear(module: nn.Module, shape: tuple[int, int]) -> bool:
    return type(module) is nn.Linear and (module.out_features, module.in_features) == shape


def _listed(names: Iterable[str]) -> str:
    """Returns the first names and the number of others."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
