"""Own layers of mixtures of experts compute what transformers computes, whichever experts are hit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run, slow
from support.small_models import small_config
from torch import Tensor
from transformers import AutoModelForCausalLM

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner

PAGE = 16
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt_oss": {"rope_parameters": YARN},
    "olmoe": {"clip_qkv": 0.8},
    "qwen3_moe": {"mlp_only_layers": [0]},
}
KINDS = ("gpt_oss", "mixtral", "olmoe", "qwen3_moe")


def runner(model: Any, context: int = 512) -> ModelRunner:
    made = ModelRunner(model, vocab_size=320, context_length=context, page_size=PAGE, fused=True)
    assert made.fused
    return made


def random_models(kind: str, **changes: Any) -> tuple[Any, Any]:
    """Returns a model with specpipe's attention, and one of the same weights with transformers' own."""
    register()
    models = []
    for attention in ("specpipe", "eager"):
        torch.manual_seed(3)
        config = small_config(kind, **(CHANGES.get(kind, {}) | changes))
        models.append(AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval())
    generator = torch.Generator().manual_seed(4)
    for name, parameter in models[0].named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * (0.1 if parameter.dim() > 1 else 0.3)
        parameter.data = values + float("norm" in name)
        models[1].get_parameter(name).data = parameter.data.clone()
    return models[0], models[1]


def logits(model: Any, tokens: Tensor, context: int = 512) -> Tensor:
    made, n = runner(model, context), len(tokens)
    pages = -(-n // PAGE)
    made.allocate_pages(pages + 1)
    return made.forward(
        tokens,
        torch.arange(n),
        block_tables=torch.arange(1, pages + 1, dtype=torch.int32)[None],
        cu_queries=torch.tensor([0, n], dtype=torch.int32),
        starts=torch.tensor([0]),
        max_queries=n,
        keep=0,
    )


def check(models: tuple[Any, Any], tokens: int, context: int = 512) -> None:
    own, reference = models
    ids = torch.randint(0, 320, (tokens,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    torch.testing.assert_close(logits(own, ids, context), expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


@pytest.mark.parametrize(("kind", "k"), [("gpt_oss", 2), *(slow(kind, k) for kind in KINDS for k in (0, 3))])
def test_greedy_output_equals_generate(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, k: int) -> None:
    pair = small_pair(kind)
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    requests = make_requests(7, vocab_size=pair.vocab_size)
    monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: runner(model, 256))
    completions = run(make_engine(target, draft, max_k=max(k, 1)), requests, k)
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(kind: str) -> None:
    check(random_models(kind), 70)


def test_one_token_uses_its_experts_alone() -> None:
    check(random_models("mixtral"), 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_4096_tokens_equal_those_of_transformers(kind: str) -> None:
    check(random_models(kind, max_position_embeddings=4096), 4096, 4096)


def test_an_expert_may_have_all_tokens_and_another_none() -> None:
    models = random_models("gpt_oss")
    for model in models:
        for layer in model.model.layers:
            layer.mlp.router.bias.data[1], layer.mlp.router.bias.data[3] = 100.0, -100.0
    check(models, 40)


def test_of_equal_router_logits_the_first_experts_are_chosen() -> None:
    """torch's choice is unspecified: the reference has no experts but the first ones."""
    (own, _), (_, reference) = random_models("mixtral"), random_models("mixtral", num_local_experts=2)
    for name, parameter in own.named_parameters():
        if name.endswith("gate.weight"):
            parameter.data[:] = 0
        few = reference.get_parameter(name)
        few.data = parameter.data[: len(few)].clone()
    assert own.config.num_local_experts > 2 == own.config.num_experts_per_tok
    check((own, reference), 40)
