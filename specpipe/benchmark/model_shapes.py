"""Shapes of known models (layers, hidden size, vocabulary) and models of these shapes with random weights."""

from __future__ import annotations

from typing import Any

import torch

from specpipe.errors import ModelError

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
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
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


def random_model(shape: str, device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> Any:
    """Returns a causal LM of this shape with weights drawn on the device. Raises ModelError for an unknown name."""
    from transformers import AutoModelForCausalLM

    config = config_of(shape)
    torch.manual_seed(seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="specpipe")
    return model.eval().requires_grad_(False)
