"""Networks of the pair: Llama with grouped-query attention and tied embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from jobs.tiny_pair.tokenizer import VOCAB_SIZE

Role = Literal["target", "draft"]
MAX_LENGTH = 1024  # tokens of a training window
END_OF_TEXT_ID, END_OF_TURN_ID = 0, 2
_HEAD_DIM = 32
_SHAPES: dict[Role, dict[str, int]] = {
    "target": {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6, "num_attention_heads": 8,
               "num_key_value_heads": 4},
    "draft": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2},
}  # fmt: skip


def build(role: Role) -> Any:
    """Returns a LlamaForCausalLM with random fp32 weights."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        head_dim=_HEAD_DIM,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TURN_ID,
        pad_token_id=END_OF_TEXT_ID,
        rms_norm_eps=1e-5,
        **_SHAPES[role],
    )
    return LlamaForCausalLM(config)


def parameters(model: Any) -> int:
    """Returns the number of parameters; the tied embedding counts once."""
    return sum(p.numel() for p in model.parameters())


def save(model: Any, folder: Path) -> None:
    """Writes bf16 safetensors and generation defaults: greedy, with both end tokens."""
    rounded = LlamaForCausalLM(model.config)
    rounded.load_state_dict(model.state_dict())
    rounded.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=[END_OF_TURN_ID, END_OF_TEXT_ID], pad_token_id=END_OF_TEXT_ID
    )
    rounded.to(torch.bfloat16).save_pretrained(folder)


def load(folder: Path, device: str = "cpu") -> Any:
    """Loads a saved model in fp32, with end tokens ignored in generation."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None)
    return model
