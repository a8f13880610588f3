"""check_support, check_pair and context_length: unsupported models are refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from support.small_models import CONTEXT, KINDS, ON_GPU, small_config, small_tokenizer

from specpipe.errors import ModelError
from specpipe.models.support import TESTED_ON_H200, check_pair, check_support, context_length, layers_on_gpu


@pytest.mark.parametrize("kind", KINDS)
def test_supported_families_pass(kind: str) -> None:
    config = small_config(kind)
    check_support(config, name=kind, max_model_len=CONTEXT)
    assert context_length(config) == CONTEXT


REFUSED = {
    "FalconConfig": "attention code",
    "GPTJConfig": "attention code",
    "BloomConfig": "attention code",
    "MambaConfig": "recurrent state",
    "Mamba2Config": "recurrent state",
    "JambaConfig": "recurrent state",
    "RwkvConfig": "recurrent state",
    "Qwen3NextConfig": "recurrent state",
    "MiniMaxConfig": "linear_attention",
    "T5Config": "encoder",
    "BertConfig": "bidirectional attention",
    "DiffLlamaConfig": "calls attention twice",
    "Gemma3nTextConfig": "shares keys and values",
    "Gemma3Config": "multimodal",
    "ViTConfig": "not a causal language model",
}


@pytest.mark.parametrize("config_class", REFUSED)
def test_others_are_refused_with_the_reason(config_class: str) -> None:
    config = getattr(transformers, config_class)()
    with pytest.raises(ModelError, match=f"org/some-model.*{REFUSED[config_class]}"):
        check_support(config, name="org/some-model")


def test_layers_that_are_not_attention_are_refused() -> None:
    config = small_config("qwen3", layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(ModelError, match="layers of type chunked_attention"):
        check_support(config)


def test_dynamic_rope_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ModelError, match="neighbours"):
        check_support(small_config("llama", rope_parameters=rope))


def longrope() -> Any:
    factors = [1.0] * 8
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "rope_theta": 10000.0}
    rope |= {"original_max_position_embeddings": 128}
    return small_config("llama", rope_parameters=rope, max_position_embeddings=1024)


def test_longrope_serves_its_original_length_and_no_more() -> None:
    assert context_length(longrope()) == 128
    check_support(longrope(), max_model_len=128)
    with pytest.raises(ModelError, match=r"at most 128 positions.*longrope.*set model.max_model_len to 128"):
        check_support(longrope(), max_model_len=129)


def test_positions_that_a_model_lacks_are_refused() -> None:
    with pytest.raises(ModelError, match=f"max_model_len is {CONTEXT + 1}.*at most {CONTEXT}"):
        check_support(small_config("gpt2"), max_model_len=CONTEXT + 1)


def test_layers_on_a_gpu_are_own_or_compiled_and_tested_or_not() -> None:
    assert [layers_on_gpu(small_config(kind)) for kind in ("gpt_oss", "qwen2_moe", "glm4_moe")] == [
        "specpipe's kernels (tested on an NVIDIA H200)",
        "torch.compile (tested on an NVIDIA H200)",
        "torch.compile (family not tested on a GPU)",
    ]


def test_families_tested_on_a_gpu_are_those_of_the_tests() -> None:
    configs = [small_config(kind) for kinds in ON_GPU.values() for kind in kinds]
    classes = {transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] for config in configs}
    assert {(c[0] if isinstance(c, tuple) else c).__name__ for c in classes} == TESTED_ON_H200


def test_equal_vocabularies_pass_whatever_the_rest_of_the_tokenizers() -> None:
    other = small_tokenizer.__wrapped__()
    other.chat_template = None
    check_pair(small_tokenizer(), other)


def test_the_first_different_token_is_named() -> None:
    other = small_tokenizer.__wrapped__()
    other.add_tokens(["<|extra|>"])
    with pytest.raises(ModelError, match=r"a cannot draft for b: .* id 320, token '<\|extra\|>'.*not in b.*320 in a"):
        check_pair(small_tokenizer(), other, target_name="b", draft_name="a")
    with pytest.raises(ModelError, match="differ first at id"):
        check_pair(small_tokenizer(), small_tokenizer(300))
