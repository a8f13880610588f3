"""Small quantised checkpoints with exactly the names and layouts of their formats, and their values in fp64.

Each writer quantises the linear layers of a random Llama, packs them by itself, and returns what the stored numbers
mean. Scales differ by orders of magnitude between outputs, groups and projections, so that a wrong one is seen.

Shapes: N outputs, K inputs, G groups of inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from support.small_models import small_config, small_tokenizer
from torch import Tensor

GROUP = 64
SIZES = {"hidden_size": 256, "num_attention_heads": 8, "head_dim": 32, "intermediate_size": 320}
"""K and V have 64 outputs and the MLP 320: no multiples of a block's 128."""


class Quantized(NamedTuple):
    """One layer."""

    stored: dict[str, Tensor]
    """By the last part of their names."""
    values: Tensor
    """[N, K] fp64."""


Quantize = Callable[[Tensor], Quantized]


class Format(NamedTuple):
    """A way to store a checkpoint."""

    config: dict[str, Any]
    """`quantization_config` of config.json."""
    quantize: Quantize
    separate: bool = False
    """True if the configuration is a file of its own (modelopt's hf_quant_config.json)."""


def _fp8(weight: Tensor, scale: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Quantized:
    """scale: by entry [N, K] or broadcast to it, with the shape stored in `shape`."""
    scale = scale.to(dtype)
    values = (weight / scale.float()).to(torch.float8_e4m3fn)
    unique = scale.expand_as(weight)
    stored = unique if shape == tuple(weight.shape) else scale.reshape(shape)
    return Quantized({"weight": values, name: stored.contiguous()}, values.double() * scale.double())


def fp8_channel(dtype: torch.dtype, *, column: bool = True) -> Quantize:
    def quantize(weight: Tensor) -> Quantized:
        scale = weight.abs().amax(1, keepdim=True) / 448
        return _fp8(weight, scale, "weight_scale", (len(weight), 1) if column else (len(weight),), dtype)

    return quantize


def fp8_tensor(shape: tuple[int, ...], name: str = "weight_scale", inputs: str = "input_scale") -> Quantize:
    def quantize(weight: Tensor) -> Quantized:
        scale = weight.abs().amax()[None, None] / 448
        result = _fp8(weight, scale, name, shape, torch.float32)
        result.stored[inputs] = torch.full(shape, 0.02)
        return result

    return quantize


def fp8_block(name: str, *, four: bool = False) -> Quantize:
    def quantize(weight: Tensor) -> Quantized:
        n, k = weight.shape
        blocks = [
            [weight[i : i + 128, j : j + 128].abs().amax() / 448 for j in range(0, k, 128)] for i in range(0, n, 128)
        ]
        table = torch.tensor(blocks)
        by_entry = torch.empty(n, k)
        for i in range(n):
            for j in range(0, k, 128):
                by_entry[i, j : j + 128] = table[i // 128, j // 128]
        values = (weight / by_entry).to(torch.float8_e4m3fn)
        stored = table[:, None, :, None] if four else table
        return Quantized({"weight": values, name: stored.contiguous()}, values.double() * by_entry.double())

    return quantize


class _Integers(NamedTuple):
    entries: Tensor
    """[N, K], 0 to 15."""
    zeros: Tensor
    """[N, G], 0 to 15."""
    scales: Tensor
    """[N, G] fp16."""
    values: Tensor
    """[N, K] fp64."""


def _integers(weight: Tensor, *, symmetric: bool) -> _Integers:
    n, k = weight.shape
    grouped = weight.view(n, k // GROUP, GROUP)
    if symmetric:
        scales = (grouped.abs().amax(-1) / 7).half()
        zeros = torch.full(scales.shape, 8)
    else:
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15).long()
    entries = (grouped / scales.float()[..., None]).round().long() + zeros[..., None]
    entries = entries.clamp(0, 15)
    values = (entries - zeros[..., None]).double() * scales.double()[..., None]
    return _Integers(entries.view(n, k), zeros, scales, values.view(n, k))


def pack(entries: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[R, C] → int32 [R, ⌈C / 8⌉]: entry order[i] of eight in nibble i, lowest first, padded with zeros."""
    rows, columns = entries.shape
    words = torch.zeros(rows, -(-columns // 8), dtype=torch.int64)
    for word in range(words.shape[1]):
        for nibble, place in enumerate(order):
            column = word * 8 + place
            if column < columns:
                words[:, word] |= entries[:, column].long() << (4 * nibble)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def packed(*, symmetric: bool, g_idx: bool = False) -> Quantize:
    def quantize(weight: Tensor) -> Quantized:
        found = _integers(weight, symmetric=symmetric)
        stored = {
            "weight_packed": pack(found.entries),
            "weight_scale": found.scales.bfloat16(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = pack(found.zeros.T).T.contiguous()
        if g_idx:
            stored["weight_g_idx"] = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
        scales = found.scales.bfloat16().double().repeat_interleave(GROUP, 1)
        return Quantized(stored, (found.entries - found.zeros.repeat_interleave(GROUP, 1)) * scales)

    return quantize


def awq(weight: Tensor) -> Quantized:
    found, order = _integers(weight, symmetric=False), (0, 2, 4, 6, 1, 3, 5, 7)
    stored = {
        "qweight": pack(found.entries.T, order),
        "qzeros": pack(found.zeros.T, order),
        "scales": found.scales.T.contiguous(),
    }
    return Quantized(stored, found.values)


def gptq(*, symmetric: bool, minus_one: bool) -> Quantize:
    def quantize(weight: Tensor) -> Quantized:
        found = _integers(weight, symmetric=symmetric)
        stored = {
            "qweight": pack(found.entries).T.contiguous(),
            "qzeros": pack((found.zeros.T - int(minus_one)) % 16),
            "scales": found.scales.T.contiguous(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
        }
        return Quantized(stored, found.values)

    return quantize


def compressed_tensors(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    """A configuration as llm-compressor writes it."""
    numbers = {"dynamic": False, "symmetric": True, "group_size": None, "block_structure": None, "observer": "minmax"}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, **weights},
        "input_activations": None if inputs is None else {**numbers, **inputs},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


_FLOAT8, _INT4 = {"type": "float", "num_bits": 8}, {"type": "int", "num_bits": 4, "strategy": "group"}
_TOKEN = {**_FLOAT8, "strategy": "token", "dynamic": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}

FORMATS: Mapping[str, Format] = {
    "ct-dynamic": Format(
        compressed_tensors("float-quantized", {**_FLOAT8, "strategy": "channel"}, _TOKEN), fp8_channel(torch.bfloat16)
    ),
    "ct-static": Format(
        compressed_tensors("float-quantized", {**_FLOAT8, "strategy": "tensor"}, {**_FLOAT8, "strategy": "tensor"}),
        fp8_tensor((1,)),
    ),
    "ct-block": Format(
        compressed_tensors(
            "float-quantized",
            {**_FLOAT8, "strategy": "block", "block_structure": [128, 128]},
            {**_FLOAT8, "strategy": "group", "group_size": 128, "dynamic": True},
        ),
        fp8_block("weight_scale"),
    ),
    "fp8-block": Format(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.norm"],
        },
        fp8_block("weight_scale_inv"),
    ),
    "fp8-tensor": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, fp8_tensor(())
    ),
    "fp8-transformers": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False},
        fp8_tensor((), "weight_scale_inv", "activation_scale"),
    ),
    "modelopt": Format(
        {
            "producer": {"name": "modelopt", "version": "0.37.0"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        },
        fp8_tensor(()),
        separate=True,
    ),
    "modelopt-channel": Format(
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "ignore": ["lm_head*"]},
        fp8_channel(torch.float32, column=False),
    ),
    "modelopt-block": Format(
        {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo", "ignore": ["lm_head"]},
        fp8_block("weight_scale", four=True),
    ),
    "w4a16": Format(
        compressed_tensors("pack-quantized", {**_INT4, "group_size": GROUP}, None), packed(symmetric=True, g_idx=True)
    ),
    "w4a16-asym": Format(
        compressed_tensors("pack-quantized", {**_INT4, "group_size": GROUP, "symmetric": False}, None),
        packed(symmetric=False),
    ),
    "awq": Format({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, awq),
    "gptq": Format({**_GPTQ, "sym": True, "checkpoint_format": "gptq"}, gptq(symmetric=True, minus_one=True)),
    "gptq-asym": Format({**_GPTQ, "sym": False, "checkpoint_format": "gptq"}, gptq(symmetric=False, minus_one=True)),
    "gptq-v2": Format({**_GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, gptq(symmetric=False, minus_one=False)),
}


class QuantizedCheckpoint(NamedTuple):
    """A folder, and a model with the values that it stores."""

    folder: Path
    reference: Any
    """transformers' own model with these values, in fp64."""


def write_checkpoint(
    folder: Path,
    name: str,
    *,
    kind: str = "llama",
    seed: int = 0,
    spread: float = 1.0,
    change: Callable[[dict[str, Tensor]], None] = lambda tensors: None,
    **config: Any,
) -> QuantizedCheckpoint:
    """Writes a checkpoint of a format, in two files. change: edits the tensors of the files.

    spread: outputs differ in size by up to 10^(2 * spread). Rounding to 16 bits changes texts of the default.
    config: changes of the model's configuration, and of the format's under `quantization`.
    """
    from transformers import AutoModelForCausalLM

    made, overrides = FORMATS[name], config.pop("quantization", {})
    settings = small_config(kind, **(SIZES | config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager").eval()
        tensors = _quantize(model, made.quantize, spread)
    change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {**made.config, **overrides}
    content = settings.to_dict() | {"dtype": "bfloat16", "architectures": [type(model).__name__]}
    if made.separate:
        (folder / "hf_quant_config.json").write_text(json.dumps(quantization))
    else:
        content["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(content))
    _write_files(folder, tensors)
    small_tokenizer(settings.vocab_size).save_pretrained(folder)
    model.generation_config.eos_token_id = None
    return QuantizedCheckpoint(folder, model.double())


def _quantize(model: Any, quantize: Quantize, spread: float = 1.0) -> dict[str, Tensor]:
    """Rounds the model in place to the values that are stored, and returns the tensors of its files."""
    tensors: dict[str, Tensor] = {}
    model.double()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            sizes = torch.logspace(-spread, spread, len(module.weight))[torch.randperm(len(module.weight))]
            layer = quantize(torch.randn(module.weight.shape) * 0.1 * sizes[:, None])
            tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in layer.stored.items()}
            module.weight.data = layer.values
    for name, parameter in model.named_parameters():
        module = name.rpartition(".")[0]
        if not any(stored.startswith(f"{module}.") for stored in tensors) or name.endswith("bias"):
            parameter.data = (torch.randn(parameter.shape) * 0.3 + (parameter.dim() == 1)).bfloat16().double()
            if not (name == "lm_head.weight" and model.config.tie_word_embeddings):
                tensors[name] = parameter.data.bfloat16()
    return tensors


def _write_files(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Writes every second tensor to another file: layers are spread over both."""
    names = sorted(tensors)
    files = {f"model-{part + 1:05}-of-00002.safetensors": names[part::2] for part in range(2)}
    for file, members in files.items():
        save_file({name: tensors[name] for name in members}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, members in files.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
