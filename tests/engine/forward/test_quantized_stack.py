"""The fused stack with quantised layers, merged and mixed, against transformers' forward on the dequantised weights."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from support.interpreter_fp8 import exact_interpreter
from support.interpreter_speed import patch_once_per_launch
from support.small_models import small_config
from torch import nn
from transformers import AutoModelForCausalLM

from specpipe.benchmark.model_shapes import random_weight
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe_kernels import QuantizedWeight, dequantize

FORMATS = {
    "fp8": {},
    "mixed": {"o_proj": "none", "gate_proj": "int4", "up_proj": "int4", "k_proj": "none"},
    "int4": dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), "int4"),
}


def quantized(weight: torch.Tensor, name: str) -> QuantizedWeight:
    """Returns a random weight in this number format, spread like the given one."""
    n, k = weight.shape
    result = random_weight(n, k, name, float(weight.std()), weight.device)  # type: ignore[arg-type]
    assert isinstance(result, QuantizedWeight)
    scale = result.scale * torch.linspace(0.5, 2, n)[:, None]  # an exchanged segment is noticed
    return result._replace(scale=scale)


def runner(model: Any, *, fused: bool) -> ModelRunner:
    made = ModelRunner(model, vocab_size=320, context_length=256, page_size=16, fused=fused)
    made.allocate_pages(12)
    return made


def logits(run: ModelRunner, steps: list[int]) -> torch.Tensor:
    """Returns the logits of the last token of chunks of these sizes of one row."""
    start, found = 0, []
    for size in steps:
        tokens = torch.arange(start, start + size) * 7 % 320
        found.append(
            run.forward(
                tokens,
                torch.arange(start, start + size),
                block_tables=torch.arange(1, 11, dtype=torch.int32)[None],
                cu_queries=torch.tensor([0, size], dtype=torch.int32),
                starts=torch.tensor([start]),
                max_queries=size,
                keep=1,
            )
        )
        start += size
    return torch.cat(found)


@pytest.mark.parametrize(
    ("formats", "hidden", "steps", "copies"),
    [
        ("fp8", 96, [9, 1], False),
        pytest.param("fp8", 96, [66, 1, 70], False, marks=pytest.mark.slow),
        pytest.param("mixed", 512, [9, 1], False, marks=pytest.mark.slow),
        pytest.param("mixed", 512, [66, 1, 70], False, marks=pytest.mark.slow),
        pytest.param("int4", 256, [66, 1, 33], True, marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_dequantised_weights(
    monkeypatch: pytest.MonkeyPatch, formats: str, hidden: int, steps: list[int], copies: bool
) -> None:
    """Rounding of activations to 8 bits changes logits by a few percent of their spread, a wrong scale by all of it."""
    register()
    config = small_config("llama", hidden_size=hidden, intermediate_size=hidden, head_dim=32)
    torch.manual_seed(0)
    dense = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="specpipe").eval()
    model = copy.deepcopy(dense).half()
    for name, module in list(model.named_modules()):
        kind = FORMATS[formats].get(name.rpartition(".")[2], "fp8")
        if isinstance(module, nn.Linear) and name != "lm_head" and kind != "none":
            weight = quantized(module.weight.data, kind)
            model.set_submodule(name, QuantizedLinear(weight))
            dense.get_submodule(name).weight.data = dequantize(weight, torch.float32)
    want = logits(runner(dense, fused=False), steps)
    monkeypatch.setenv("SPECPIPE_KERNELS", "triton")
    with exact_interpreter(), patch_once_per_launch():
        run = runner(model, fused=True)
        run.keep_dense_copies(sys.maxsize if copies else 0)
        assert (run.copy_bytes > 0) == copies
        got = logits(run, steps)
    assert float((got - want).norm() / want.norm()) < 0.1
