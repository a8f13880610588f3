"""Experts of transformers' families through own kernels: equal logits, and no change where they cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_models import make_small_model
from transformers import AutoModelForCausalLM

from specpipe.engine.forward.experts_interface import use_own_experts


def load(kind: str, path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(make_small_model(kind, path, seed=0), dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", ["gpt_oss", "mixtral", "olmoe", "qwen3_moe"])
def test_logits_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model, tokens = load(kind, tmp_path), torch.arange(70)[None] * 3 % 320
    with torch.inference_mode():
        want = model(tokens).logits
        assert use_own_experts(model) == 2
        got = model(tokens).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert model.model.layers[0].mlp.experts.config._experts_implementation == "specpipe"


def test_transposed_weights_are_stored_once(tmp_path: Path) -> None:
    model = load("gpt_oss", tmp_path)
    use_own_experts(model)
    module = model.model.layers[1].mlp.experts
    assert module.experts.down.is_contiguous()
    assert module.experts.down.data_ptr() == module.down_proj.data_ptr()
    assert torch.equal(module.experts.down, module.down_proj.transpose(1, 2))


def test_experts_with_another_activation_stay_as_they_are(tmp_path: Path) -> None:
    model = load("mixtral", tmp_path)
    model.model.layers[1].mlp.experts.act_fn = torch.nn.GELU()
    implementation = model.config._experts_implementation
    assert use_own_experts(model) == 0
    assert model.config._experts_implementation == implementation


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    assert use_own_experts(load("llama", tmp_path)) == 0
