"""Checks whether a model can be served, with the reason if not, before any weights are read.

Rejected tokens are rolled back by shortening a row, and rows of a batch must not influence each other. State other than
a layer's own KV memory, or attention other than plain attention over it, violates one or the other.
"""

from __future__ import annotations

import inspect
from typing import Any

from specpipe.errors import ModelError

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "sparse", "dense"})
_ARGUMENTS = ("input_ids", "position_ids", "use_cache", "logits_to_keep")
_UNSUPPORTED = {
    "diffllama": "calls attention twice in a layer, with different values",
    "doge": "computes attention masks of its own",
    "hrm_text": "runs its layers several times, each time with other keys and values",
    "nemotron": "passes no arguments on to its attention",
    "phimoe": "has its sliding window in attention masks alone",
}
"""Families that declare replaceable attention but compute wrong results with it (tests/models/test_families.py)."""
OWN_LAYERS = frozenset(
    {
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "OlmoeForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
"""Families whose layers run as specpipe's kernels on a GPU."""


TESTED_ON_H200 = OWN_LAYERS | {
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "GPT2LMHeadModel",
    "Phi3ForCausalLM",
    "Qwen2MoeForCausalLM",
}
"""Families whose layers tests run on a GPU (tests/support/small_models.py: ON_GPU)."""


def layers_on_gpu(config: Any) -> str:
    """Returns how a supported model's layers run on a GPU, and on which its family was tested.

    config: a transformers configuration.
    """
    model_class = _model_class(config)
    name = "" if model_class is None else model_class.__name__
    how = "specpipe's kernels" if name in OWN_LAYERS else "torch.compile"
    return f"{how} ({'tested on an NVIDIA H200' if name in TESTED_ON_H200 else 'family not tested on a GPU'})"


def context_length(config: Any) -> int:
    """Returns the model's number of positions; with RoPE `longrope`, that of its short factors. Raises ModelError."""
    given = getattr(config, "max_position_embeddings", None)
    if not isinstance(given, int) or given < 1:
        raise ModelError(
            f"{config.model_type}: config.json has no max_position_embeddings; expected the number of positions"
        )
    originals = [
        rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for rope in _ropes(config)
        if rope.get("rope_type") == "longrope"
    ]
    return int(min([given, *(o for o in originals if o)]))


def check_support(config: Any, *, name: str = "", max_model_len: int | None = None) -> None:
    """Raises ModelError with the reason for a model that cannot be served correctly.

    config: a transformers configuration. max_model_len: longest prompt + output of the job in tokens; None for the
    model's own limit.
    """
    label = name or config.model_type
    _check_architecture(config, label)
    model_class = _model_class(config)
    if model_class is not None:
        check_class(model_class, label)
    elif not getattr(config, "auto_map", None):  # load_model checks the class of a model with its own code
        raise ModelError(f"model {label} ({config.model_type}) is not a causal language model of transformers")
    _check_layers(config, label)
    _check_positions(config, label, max_model_len)


def check_pair(target: Any, draft: Any, *, target_name: str = "the target", draft_name: str = "the draft") -> None:
    """Raises ModelError unless both vocabularies map every token to the same id. target, draft: tokenizers."""
    mine, theirs = target.get_vocab(), draft.get_vocab()
    if mine == theirs:
        return
    different = (t for t in mine.keys() | theirs.keys() if mine.get(t) != theirs.get(t))
    at, token = min((min(i for i in (mine.get(t), theirs.get(t)) if i is not None), t) for t in different)
    ids = [
        f"{v[token]} in {n}" if token in v else f"not in {n}" for v, n in ((mine, target_name), (theirs, draft_name))
    ]
    raise ModelError(
        f"{draft_name} cannot draft for {target_name}: their vocabularies differ first at id {at}, token {token!r}, "
        f"which is {' and '.join(ids)}; choose a draft of the same family, or set speculation.proposer to ngram"
    )


def _check_architecture(config: Any, label: str) -> None:
    label = f"model {label} ({config.model_type})"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{label} has an encoder; expected a decoder-only language model")
    if getattr(config, "is_decoder", None) is False and hasattr(config, "add_cross_attention"):
        raise ModelError(f"{label} has bidirectional attention; expected a decoder-only language model")
    if config.get_text_config() is not config:
        raise ModelError(f"{label} is multimodal; expected a text-only language model of the family")
    if config.model_type in _UNSUPPORTED:
        raise ModelError(
            f"{label} {_UNSUPPORTED[config.model_type]}, which specpipe cannot serve; expected another family"
        )
    if getattr(config, "num_kv_shared_layers", None):
        raise ModelError(
            f"{label} shares keys and values between layers, which specpipe cannot do yet; expected a model whose "
            "layers keep their own"
        )


def check_class(model_class: type, label: str) -> None:
    """Raises ModelError for a transformers model class whose attention or cache cannot be replaced."""
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(
            f"model {label} ({model_class.__name__}) keeps a recurrent state, which cannot be rolled back when a draft "
            "is rejected; expected a model with attention alone"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelError(
            f"model {label} ({model_class.__name__}) has its own attention code, which transformers cannot swap for "
            "specpipe's (no _supports_attention_backend); Llama, Qwen, Mistral, Gemma, GPT-2 and newer families can"
        )
    missing = [a for a in _ARGUMENTS if a not in inspect.signature(model_class.forward).parameters]  # type: ignore[attr-defined]
    if missing:
        raise ModelError(
            f"model {label} ({model_class.__name__}) takes no {', '.join(missing)} in forward(); expected a causal "
            "language model with transformers' usual interface"
        )


def _check_layers(config: Any, label: str) -> None:
    foreign = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if foreign:
        raise ModelError(
            f"model {label} ({config.model_type}) has layers of type {', '.join(foreign)}; expected full or "
            "sliding-window attention alone: other state cannot be rolled back when a draft is rejected"
        )


def _check_positions(config: Any, label: str, max_model_len: int | None) -> None:
    kinds = {str(rope.get("rope_type", "default")) for rope in _ropes(config)}
    if any("dynamic" in kind for kind in kinds):
        raise ModelError(
            f"model {label} has RoPE of type dynamic, whose frequencies depend on the longest row of a batch: a row's "
            "output would depend on its neighbours; expected another rope_type (yarn or linear) in config.json"
        )
    longest = context_length(config)
    if max_model_len is None or max_model_len <= longest:
        return
    why = (
        "its longrope factors would change for all rows of a batch"
        if "longrope" in kinds
        else "the limit of its configuration"
    )
    raise ModelError(
        f"max_model_len is {max_model_len}, but model {label} takes at most {longest} positions, prompt and output "
        f"together ({why}); set model.max_model_len to {longest} or less"
    )


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Returns sets of RoPE parameters; some models have one per layer type."""
    given = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in given.values() if isinstance(value, dict)]
    return nested or [given]


def _model_class(config: Any) -> type | None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    result: type | None = found[0] if isinstance(found, tuple) else found
    return result
