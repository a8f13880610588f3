"""Shapes of known models (layers, hidden size, vocabulary) and models of these shapes with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specpipe.benchmark.bench_config import BenchQuantize
from specpipe.engine.forward.experts_interface import experts_modules, set_weights
from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe.engine.loading.tensor_places import weight_shape
from specpipe.errors import ModelError
from specpipe_kernels import (
    ExpertWeights,
    Fp8ExpertWeight,
    Mxfp4Weight,
    QuantizedWeight,
    Weight,
    pack_int4,
    quantize_fp8,
    with_scales_by_group,
)

_NO_SPECIAL = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
_LLAMA_3: dict[str, Any] = _NO_SPECIAL | {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
_GPT_OSS: dict[str, Any] = _NO_SPECIAL | {
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "tie_word_embeddings": False,
}
_QWEN_3: dict[str, Any] = _NO_SPECIAL | {"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
    "llama-3.3-70b": _LLAMA_3
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    | {"tie_word_embeddings": False},
    "llama-3.2-1b": _LLAMA_3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
    | {"tie_word_embeddings": True},
    "gemma-2-2b": _NO_SPECIAL
    | {"model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216}
    | {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "phi-3-mini": _NO_SPECIAL
    | {"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}
    | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32}
    | {"tie_word_embeddings": False},
    "qwen3-30b-a3b": _QWEN_3
    | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "moe_intermediate_size": 768}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
    | {"norm_topk_prob": True, "tie_word_embeddings": False},
    "qwen3-0.6b": _QWEN_3
    | {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "gpt-oss-20b": _GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": _GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    "gpt-oss-draft": _LLAMA_3
    | {"vocab_size": 201088, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16}
    | {"num_attention_heads": 16, "head_dim": 64, "tie_word_embeddings": True},
    "small": _LLAMA_3
    | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}
"""Fields of the transformers configuration by the name of the shape."""


def config_of(shape: str) -> Any:
    """Returns a new transformers configuration of this shape. Raises ModelError for an unknown name."""
    from transformers import AutoConfig

    if shape not in SHAPES:
        raise ModelError(f"unknown model shape {shape!r}; expected one of {', '.join(SHAPES)}")
    return AutoConfig.for_model(**SHAPES[shape])


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype, *, quantize: BenchQuantize = "none", seed: int = 0
) -> Any:
    """Returns a causal LM of this shape with weights drawn on the device. Raises ModelError for an unknown name.

    Quantised weights are drawn layer by layer: the dense model need not fit into memory. So are those of mixtures, for
    which transformers' own initialisation takes half a minute.
    """
    from transformers import AutoModelForCausalLM

    config = config_of(shape)
    torch.manual_seed(seed)
    drawn = quantize != "none" or hasattr(config, "num_experts_per_tok")
    with torch.device("meta") if drawn else device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="specpipe")
    if drawn:
        draw_quantized(model, quantize, device)
        _draw_missing(model, device)
        model.tie_weights()
    return model.eval().requires_grad_(False)


def draw_quantized(model: Any, quantize: BenchQuantize, device: torch.device) -> None:
    """Replaces the linear layers, except the head, and experts by quantised ones with random weights on the device."""
    if quantize == "none":
        return
    head, std = model.get_output_embeddings(), model.config.initializer_range
    if quantize in ("fp8", "fp8-block", "mxfp4"):
        for module in experts_modules(model).values():
            gate_up, down = (
                random_experts(weight_shape(module, name), quantize, std, device)
                for name in ("gate_up_proj", "down_proj")
            )
            set_weights(module, gate_up, down)
    if quantize == "mxfp4":
        return
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            weight = random_weight(module.out_features, module.in_features, quantize, std, device)
            assert isinstance(weight, QuantizedWeight)
            bias = None if module.bias is None else torch.zeros_like(module.bias, device=device)
            model.set_submodule(name, QuantizedLinear(weight, bias))


def random_weight(
    n: int, k: int, quantize: BenchQuantize, std: float, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Weight:
    """Returns a random weight [n, k]: of dtype, e4m3 by channel or block, or 4 bits with scales for 128 columns."""
    if quantize == "int4":
        entries = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=device)
        scale = torch.full((n, -(-k // 128)), std / 4.6, device=device)  # 4.6: the standard deviation of 0 … 15
        return with_scales_by_group(QuantizedWeight(pack_int4(entries), scale, None, (1, 128)))
    dense = torch.randn(n, k, dtype=dtype, device=device) * std
    if quantize == "none":
        return dense
    weight = quantize_fp8(dense)
    if quantize == "fp8":
        return weight
    scale = torch.full((-(-n // 128), -(-k // 128)), std / 64, device=device)
    return weight._replace(scale=scale, block=(128, 128))


def random_experts(
    shape: tuple[int, int, int], quantize: BenchQuantize, std: float, device: torch.device
) -> ExpertWeights:
    """Returns random weights [E, N, K] of experts: e4m3 with scales for blocks of 128 x 128, or mxfp4."""
    e, n, k = shape
    blocks = -(-k // 128)
    if quantize == "mxfp4":
        words = torch.randint(-(2**15), 2**15, (e, blocks, n, 32), dtype=torch.int16, device=device)
        exponents = torch.full((e, blocks, n), 0xB7B7B7B7 - 2**32, dtype=torch.int32, device=device)  # 2^-6
        return Mxfp4Weight(words, exponents)
    values = torch.empty(e, n, k, dtype=torch.float8_e4m3fn, device=device)
    for one in values:
        one.copy_(torch.randn(n, k, device=device) * 64)
    scale = torch.full((e, -(-n // 128), blocks), std / 64, device=device)
    return Fp8ExpertWeight(values, scale, (128, 128))


def _draw_missing(model: Any, device: torch.device) -> None:
    """Replaces what is still on the `meta` device: norms by ones, other parameters by normal draws."""
    std = model.config.initializer_range
    for module in list(model.modules()):
        if hasattr(module, "inv_freq"):  # computed from the configuration by the module itself
            with device:
                vars(module).update(vars(type(module)(model.config)))
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                data = torch.ones_like(parameter, device=device)
                data = data if data.dim() == 1 else data.normal_(0, std)
                module.register_parameter(name, nn.Parameter(data, requires_grad=False))
