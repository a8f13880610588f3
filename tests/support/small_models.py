"""Real model folders, small enough for a test: random weights of a family and a tokenizer trained on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

KINDS = ("llama", "qwen3", "gpt2", "mistral", "gemma2", "gpt_oss")
ON_GPU = {
    "own layers": ("llama", "mistral", "qwen2", "qwen3"),
    "compiled layers": ("gemma", "gemma2", "gemma3_text", "phi3", "gpt2"),
    "mixtures": ("gpt_oss", "mixtral", "olmoe", "qwen3_moe", "qwen2_moe"),
}
"""Families whose layers GPU tests run; docs/models.md and `specpipe doctor` list them."""
VOCAB_SIZE = 320
CONTEXT = 512

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m['role']) }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
_CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is 12 plus 30? It is 42.",
    "Grüße aus Zürich: naïve café, 你好世界, 🙂🙃 and some more plain words to merge.",
] * 4


@cache
def small_tokenizer(vocab_size: int = VOCAB_SIZE) -> Any:
    """Returns a byte-level BPE tokenizer that adds a BOS token; its chat template writes one as well."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def small_config(kind: str, *, vocab_size: int = VOCAB_SIZE, **changes: Any) -> Any:
    """Returns a configuration of the family: 2 layers, hidden size 48 to 64, grouped heads if the family has them."""
    import transformers

    grouped = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    without_head_dim = {name: value for name, value in grouped.items() if name != "head_dim"}
    gpt2 = {"vocab_size": vocab_size, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": CONTEXT}
    families: dict[str, tuple[str, dict[str, Any]]] = {
        "llama": ("LlamaConfig", grouped),
        "qwen2": ("Qwen2Config", without_head_dim),
        "qwen3": ("Qwen3Config", grouped),
        "gpt2": ("GPT2Config", gpt2 | {"bos_token_id": 0, "eos_token_id": 1}),
        "mistral": ("MistralConfig", grouped | {"sliding_window": 24}),
        "gemma2": ("Gemma2Config", grouped | {"sliding_window": 24, "query_pre_attn_scalar": 16}),
        "gemma": ("GemmaConfig", grouped),
        "gemma3_text": ("Gemma3TextConfig", grouped | {"sliding_window": 24, "query_pre_attn_scalar": 16}),
        "gpt_oss": (
            "GptOssConfig",
            grouped
            | {"sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        ),
        "mixtral": ("MixtralConfig", grouped | {"num_local_experts": 5, "num_experts_per_tok": 2}),
        "olmoe": ("OlmoeConfig", without_head_dim | {"num_experts": 6, "num_experts_per_tok": 3}),
        "qwen3_moe": (
            "Qwen3MoeConfig",
            grouped | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True},
        ),
        "glm4_moe": (
            "Glm4MoeConfig",
            grouped
            | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1}
            | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        ),
        "phi3": ("Phi3Config", without_head_dim),
        "qwen2_moe": (
            "Qwen2MoeConfig",
            without_head_dim
            | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
            | {"shared_expert_intermediate_size": 32},
        ),
    }
    config_class, values = families[kind]
    return getattr(transformers, config_class)(**(values | changes))


def make_small_model(
    kind: str, path: Path | str, *, seed: int, vocab_size: int = VOCAB_SIZE, scale: float = 4.0, **changes: Any
) -> Path:
    """Writes a model folder of a family (see KINDS) with random weights of `seed`; returns its path.

    scale spreads the weights: at initialisation all logits are near-ties, and greedy output would be a coin toss.
    changes: fields of the configuration.
    """
    from transformers import AutoModelForCausalLM

    config = small_config(kind, vocab_size=vocab_size, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(scale)
    path = Path(path)
    model.save_pretrained(path)
    small_tokenizer(vocab_size).save_pretrained(path)
    return path
