"""Loading of models, dense or quantised.

Quantised weights go to the device tensor by tensor: neither the host nor the device ever holds the dense model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specpipe.core import QuantizeChoice
from specpipe.engine.loading.expert_modules import (
    merge_experts,
    mxfp4_experts,
    outline_experts,
    quantize_experts,
    set_experts,
)
from specpipe.engine.loading.linear_modules import check_fp8, quantizable, quantize_linears, set_layer, weight_rows
from specpipe.engine.loading.tensor_places import EXPERT_PARTS, CheckpointNames, ExpertPart, TensorPlaces, find_places
from specpipe.engine.loading.tensor_reader import DTYPES, TensorReader
from specpipe.errors import ModelError
from specpipe.models.loader import load_config, load_model, outline_of, skeleton_of
from specpipe.models.quantization.checkpoint import Checkpoint, inspect_checkpoint
from specpipe.models.quantization.mxfp4_experts import WEIGHTS
from specpipe.models.quantization.planned_weights import check_quantize
from specpipe.models.quantization.quantized_weight import quantized_weight
from specpipe.models.quantization.stored_tensors import StoredTensor
from specpipe.models.source import ModelSource
from specpipe_kernels import QuantizedWeight, quantize_fp8

_THREADS = 8  # tensors read at once: 15 GB/s from the page cache (H200, 16 cores)


def load_weights(
    source: ModelSource,
    device: torch.device | str,
    dtype: torch.dtype,
    attn_implementation: str = "specpipe",
    *,
    quantize: QuantizeChoice = "none",
    trust_remote_code: bool = False,
) -> Any:
    """Loads a causal language model in eval mode, without gradients; quantised where the checkpoint or `quantize` is.

    On a CPU quantised weights are dense tensors of their values in `dtype`; on a GPU layers are `QuantizedLinear`.
    Scales of keys and values are the buffers `k_scale` and `v_scale` (fp32 [1] or [KV heads]) of attention modules.
    Raises ModelError, and MachineError for a GPU without fp8.
    """
    device = torch.device(device)
    checkpoint = inspect_checkpoint(source)
    check_quantize(checkpoint, source, quantize)
    if quantize == "fp8" or any(layer.layout.bits == 8 for layer in checkpoint.layers.values()):
        remedy = "use a checkpoint in 16 bits without model.quantize"
        check_fp8(device, f"model {source.name} has weights in fp8", remedy)
    if quantize == "none" and not checkpoint.quantised:
        check_tensors(source, trust_remote_code=trust_remote_code)
        return load_model(source, device, dtype, attn_implementation, trust_remote_code=trust_remote_code)
    config = load_config(source, trust_remote_code=trust_remote_code)
    model = skeleton_of(config, dtype, attn_implementation, trust_remote_code=trust_remote_code)
    if quantize == "fp8" and not (checkpoint.dense and CheckpointNames(model).renames_only):
        # Pickles, and families whose weights transformers merges: read whole, then quantised layer by layer.
        model = load_model(source, device, dtype, attn_implementation, trust_remote_code=trust_remote_code)
        quantize_linears(model)
        quantize_experts(model)
        return model
    try:
        _Filling(model, checkpoint, find_places(model, checkpoint, source.name), device, quantize).run()
        if quantize == "fp8":
            quantize_experts(model)
    except (OSError, ValueError) as error:
        raise ModelError(f"model {source.name} cannot be loaded from {source.path}: {error}") from error
    return model


def check_tensors(source: ModelSource, *, trust_remote_code: bool = False) -> None:
    """Raises ModelError where names, shapes or dtypes in the headers of the weight files do not fit config.json.

    Reads no weights. Pickles have no headers, and code of a checkpoint may not run without weights: neither is checked.
    """
    checkpoint, config = inspect_checkpoint(source), load_config(source, trust_remote_code=trust_remote_code)
    if (checkpoint.dense or checkpoint.quantised) and not getattr(config, "auto_map", None):
        find_places(skeleton_of(config, torch.float32, "eager"), checkpoint, source.name)


def load_outline(
    source: ModelSource, dtype: torch.dtype, *, quantize: QuantizeChoice = "none", trust_remote_code: bool = False
) -> Any:
    """Returns a model of few layers on torch's `meta` device, quantised like that of `load_weights` on a GPU."""
    model = outline_of(
        load_config(source, trust_remote_code=trust_remote_code), dtype, trust_remote_code=trust_remote_code
    )
    if quantize == "fp8":
        quantize_linears(model)
        quantize_experts(model)
        return model
    names, checkpoint = CheckpointNames(model), inspect_checkpoint(source)
    outline_experts(model, names, checkpoint)
    for stored, layer in checkpoint.layers.items():
        name = names.module(stored)
        if f"{name}.weight" in names.known:
            tensors = {
                part: torch.empty(t.shape, dtype=DTYPES[t.dtype], device="meta") for part, t in layer.tensors.items()
            }
            set_layer(model, name, quantized_weight(layer.layout, tensors, layer.shape))
    return model


class _Filling:
    """Reads the tensors of a checkpoint into a skeleton, with several threads."""

    def __init__(
        self, model: Any, checkpoint: Checkpoint, places: TensorPlaces, device: torch.device, quantize: QuantizeChoice
    ) -> None:
        self._model, self._checkpoint, self._places, self._device = model, checkpoint, places, device
        self._quantizable = quantizable(model) if quantize == "fp8" else {}
        self._reader = TensorReader(device)

    def run(self) -> None:
        """Fills all parameters and moves buffers to the device. Raises ValueError for contents that do not fit."""
        layers, places = self._checkpoint.layers, self._places
        mxfp4 = self._checkpoint.experts.items()
        self._run_all((next(iter(tensors.values())), partial(self._fill_mxfp4, n)) for n, tensors in mxfp4)
        firsts = {module: layers[next(iter(parts.values()))] for module, parts in places.merged.items()}
        self._run_all(
            (next(iter(first.tensors.values())), partial(self._fill_merged, module)) for module, first in firsts.items()
        )
        # Quantised layers before dense ones: they replace modules, to which biases then belong.
        replaced = [name for name, place in places.dense.items() if place.removesuffix(".weight") in self._quantizable]
        self._run_all((next(iter(layers[n].tensors.values())), partial(self._fill_layer, n)) for n in places.layers)
        self._run_all((self._checkpoint.dense[n], partial(self._quantize_layer, n)) for n in replaced)
        others = places.dense.keys() - replaced
        self._run_all((self._checkpoint.dense[n], partial(self._fill_dense, n)) for n in others)
        for (stored, side), place in places.kv_scales.items():
            scale = self._reader.read(self._checkpoint.kv_scales[stored, side]).float().reshape(-1)
            self._model.get_submodule(place).register_buffer(f"{side}_scale", scale, persistent=False)
        self._tie()
        for module in self._model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self._device)

    @staticmethod
    def _run_all(tasks: Iterable[tuple[StoredTensor, Callable[[], None]]]) -> None:
        """Runs tasks in the order of their tensors in the files."""
        ordered = sorted(tasks, key=lambda task: (task[0].file, task[0].start))
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(lambda task: task[1](), ordered):
                pass

    def _fill_layer(self, stored: str) -> None:
        try:
            set_layer(self._model, self._places.layers[stored], self._quantized(stored))
        except ValueError as error:
            raise ValueError(f"layer {stored}: {error}") from error

    def _fill_mxfp4(self, stored: str) -> None:
        tensors = self._read(self._checkpoint.experts[stored], [f"{weight}_scales" for weight in WEIGHTS])
        module = self._model.get_submodule(self._places.experts[stored])
        set_experts(module, *mxfp4_experts(tensors), self._device)

    def _fill_merged(self, place: str) -> None:
        """Reads the experts of one layer, whose linear layers are stored one by one."""
        parts = self._places.merged[place]
        experts = range(len(parts) // len(EXPERT_PARTS))
        try:
            weights = [[self._quantized(parts[ExpertPart(e, part)]) for e in experts] for part in EXPERT_PARTS]
            set_experts(self._model.get_submodule(place), *merge_experts(*weights), self._device)
        except ValueError as error:
            raise ValueError(f"experts {place}: {error}") from error

    def _quantized(self, stored: str) -> QuantizedWeight:
        layer = self._checkpoint.layers[stored]
        tensors = self._read(layer.tensors, [part for part in layer.layout.required if "scale" in part])
        return quantized_weight(layer.layout, tensors, layer.shape)

    def _read(self, stored: Mapping[str, StoredTensor], scales: Iterable[str]) -> dict[str, Tensor]:
        """Reads the tensors of a module by the last part of their names.

        scales: those that must be finite. Raises ValueError for NaN and infinity; in uint8 (mxfp4) 255 is NaN.
        """
        tensors = {part: self._reader.read(tensor) for part, tensor in stored.items()}
        for part in scales:
            values = tensors[part]
            finite = values != 255 if values.dtype == torch.uint8 else values.float().isfinite()
            if not bool(finite.all()):
                raise ValueError(
                    f"{stored[part].name} in {stored[part].file} has {int((~finite).sum()):,} of {values.numel():,} "
                    "scales that are NaN or infinite; copy or download the file again, or quantise the model anew"
                )
        return tensors

    def _quantize_layer(self, stored: str) -> None:
        name = self._places.dense[stored].removesuffix(".weight")
        weight = self._reader.read(self._checkpoint.dense[stored])
        set_layer(self._model, name, quantize_fp8(weight_rows(self._model.get_submodule(name), weight)))

    def _fill_dense(self, stored: str) -> None:
        module_name, _, leaf = self._places.dense[stored].rpartition(".")
        module, tensor = self._model.get_submodule(module_name), self._reader.read(self._checkpoint.dense[stored])
        if leaf in module._parameters:
            module._parameters[leaf] = nn.Parameter(tensor.to(module._parameters[leaf].dtype), requires_grad=False)
        else:
            module._buffers[leaf] = tensor.to(module._buffers[leaf].dtype)

    def _tie(self) -> None:
        """Shares tied weights as transformers does: where the checkpoint has one of them, or both with equal values."""
        for target, origin in self._model.all_tied_weights_keys.items():
            module_name, _, leaf = target.rpartition(".")
            module, source = self._model.get_submodule(module_name), self._model.get_parameter(origin)
            own = module._parameters.get(leaf)
            if own is not None and (own.is_meta or torch.equal(own, source)):
                module._parameters[leaf] = source
