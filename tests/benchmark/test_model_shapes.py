"""Random models of known shapes: mixtures whose experts are drawn quantised run through own layers."""

from __future__ import annotations

import pytest
import torch

from specpipe.benchmark.bench_config import BenchQuantize
from specpipe.benchmark.model_shapes import SHAPES, config_of, random_model
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe_kernels import Fp8ExpertWeight, Mxfp4Weight

TINY = {"num_hidden_layers": 2, "vocab_size": 300, "hidden_size": 96, "num_attention_heads": 4, "head_dim": 16}
TINY |= {"num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("shape", "inner", "quantize", "kind"),
    [
        ("gpt-oss-20b", {"intermediate_size": 160}, "mxfp4", Mxfp4Weight),
        ("qwen3-30b-a3b", {"moe_intermediate_size": 128, "num_experts": 8}, "fp8", Fp8ExpertWeight),
    ],
)
def test_quantised_experts_are_drawn_without_dense_ones(
    monkeypatch: pytest.MonkeyPatch, shape: str, inner: dict[str, int], quantize: BenchQuantize, kind: type
) -> None:
    register()
    monkeypatch.setitem(SHAPES, "tiny", SHAPES[shape] | TINY | inner)
    model = random_model("tiny", torch.device("cpu"), torch.float32, quantize=quantize)
    assert all(isinstance(weight, kind) for weight in model.model.layers[1].mlp.experts.quantized)
    runner = ModelRunner(model, vocab_size=300, context_length=64, page_size=16, fused=True)
    assert runner.fused
    runner.allocate_pages(4)
    logits = runner._feed_alone(torch.arange(20), 0, 20, keep=0)
    assert logits.isfinite().all() and logits.std() > 0.01


def test_weights_of_a_mixture_in_16_bits_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    monkeypatch.setitem(
        SHAPES, "tiny", SHAPES["qwen3-30b-a3b"] | TINY | {"moe_intermediate_size": 40, "num_experts": 8}
    )
    model = random_model("tiny", torch.device("cpu"), torch.float32)
    experts = model.model.layers[1].mlp.experts
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert float(experts.gate_up_proj.std()) == pytest.approx(0.02, rel=0.1)


def test_mixtures_have_the_parameters_of_their_names() -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        sizes = {
            shape: sum(p.numel() for p in AutoModelForCausalLM.from_config(config_of(shape)).parameters()) / 1e9
            for shape in ("qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b")
        }
    assert {shape: round(size, 1) for shape, size in sizes.items()} == {
        "qwen3-30b-a3b": 30.5,
        "gpt-oss-20b": 20.9,
        "gpt-oss-120b": 116.8,
    }
