"""quantize_linears: weights of projections in 8 bits, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run

from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe.engine.loading.linear_modules import check_fp8, quantize_linears
from specpipe.errors import MachineError
from specpipe.models.loader import outline_of
from specpipe_kernels import dequantize, quantize_fp8


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rounds_projections_and_nothing_else(small_pair, kind: str) -> None:
    model = copy.deepcopy(small_pair(kind).target)
    quantize_linears(model)
    for (name, now), before in zip(model.named_parameters(), small_pair(kind).target.parameters(), strict=True):
        rounded = name.endswith("weight") and any(part in name for part in ("proj", "c_attn", "c_fc"))
        transposed = kind == "gpt2" and rounded
        rows = before.T if transposed else before
        expected = dequantize(quantize_fp8(rows), torch.float32) if rounded else rows
        assert torch.equal(now, expected.T if transposed else expected), name


def test_drafts_in_8_bits_leave_greedy_tokens_unchanged(small_pair) -> None:
    pair = small_pair("llama")
    draft = copy.deepcopy(pair.target)
    quantize_linears(draft)
    requests = make_requests(7, vocab_size=pair.vocab_size)

    completions = run(make_engine(copy.deepcopy(pair.target), draft), requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    drafted, accepted = (sum(getattr(c, f"{name}_tokens") for c in completions) for name in ("draft", "accepted"))
    assert 0.5 < accepted / drafted < 1


def test_outlines_have_quantized_layers_and_a_dense_head(small_pair) -> None:
    model = outline_of(copy.deepcopy(small_pair("llama").target.config), torch.bfloat16)
    quantize_linears(model)
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    assert len(layers) == 14 and all(layer.values.is_meta for layer in layers)
    assert type(model.lm_head) is torch.nn.Linear


def test_a_gpu_without_fp8_raises_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    with pytest.raises(MachineError, match=r"A100 has compute capability 8\.0; expected 8\.9 or newer"):
        check_fp8(torch.device("cuda"), "model.kv_dtype is fp8", "leave it out")
    check_fp8(torch.device("cpu"), "model.kv_dtype is fp8", "leave it out")
