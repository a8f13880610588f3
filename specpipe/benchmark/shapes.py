"""Models by their shape alone: the configuration of a known model, random weights made on the device."""

from __future__ import annotations

from typing import Any

import torch

from specpipe.errors import ModelError

_LLAMA_3: dict[str, Any] = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
    "llama-3.2-1b": _LLAMA_3
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
    | {"tie_word_embeddings": True},
    "small": _LLAMA_3
    | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}


def config_of(shape: str) -> Any:
    """A new transformers configuration. Raises ModelError for an unknown shape."""
    from transformers import LlamaConfig

    if shape not in SHAPES:
        raise ModelError(f"there is no shape {shape!r}; expected one of {', '.join(SHAPES)}")
    return LlamaConfig(**SHAPES[shape])


def random_model(shape: str, device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> Any:
    """A causal LM of that shape, weights drawn on the device. Raises ModelError for an unknown shape."""
    from transformers import AutoModelForCausalLM

    config = config_of(shape)
    torch.manual_seed(seed)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="specpipe")
    return model.eval().requires_grad_(False)
