"""Sizes of weights before they are read, and formats in plans, identity and messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support.quantized_checkpoints import write_checkpoint
from support.small_models import make_small_model

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.loading.load_weights import load_outline, load_weights
from specpipe.errors import ModelError
from specpipe.models.quantization.planned_weights import plan_weights
from specpipe.models.source import resolve


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def size(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype != torch.float64)


@pytest.mark.parametrize("name", ["ct-dynamic", "fp8-block", "w4a16", "awq"])
def test_planned_bytes_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    source = resolve(str(write_checkpoint(tmp_path, name).folder), "target")
    planned = plan_weights(source, dtype="bfloat16", device="cuda", quantize="none")
    rotary = 32 // 2 * 4 * 2  # inverse frequencies of RoPE, which no checkpoint has
    assert planned.bytes == size(load_outline(source, torch.bfloat16)) - rotary
    on_cpu = plan_weights(source, dtype="float32", device="cpu", quantize="none")
    assert on_cpu.bytes == size(load_weights(source, "cpu", torch.float32, "eager")) - rotary


@pytest.mark.parametrize(("name", "kind"), [("fp8-block", "llama"), ("awq", "llama"), ("awq", "gemma2")])
def test_planned_copies_are_of_own_layers_in_4_bits(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPIPE_KERNELS", "reference")
    source = resolve(str(write_checkpoint(tmp_path, name, kind=kind).folder), "target")
    planned = plan_weights(source, dtype="bfloat16", device="cuda", quantize="none")
    if (name, kind) != ("awq", "llama"):
        assert planned.copies == 0
        return
    runner = ModelRunner(
        load_outline(source, torch.bfloat16), vocab_size=320, context_length=64, page_size=16, fused=True, compiler=""
    )
    runner.keep_dense_copies(sys.maxsize)
    assert 0 < planned.copies == runner.copy_bytes
    assert planned.describe().endswith(f" MiB and {planned.copies / 2**20:.1f} MiB of dense copies")
    assert plan_weights(source, dtype="float32", device="cpu", quantize="none").copies == 0


def test_weights_quantised_at_load_are_planned_in_8_bits(tmp_path: Path) -> None:
    source = resolve(str(make_small_model("llama", tmp_path, seed=0)), "target")
    planned = plan_weights(source, dtype="bfloat16", device="cuda", quantize="fp8")
    assert planned.bytes == size(load_outline(source, torch.bfloat16, quantize="fp8")) - 16 // 2 * 4 * 2
    assert planned.describe() == f"FP8 by channel, at load, {planned.bytes / 2**20:.1f} MiB"


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    source = resolve(str(write_checkpoint(tmp_path, "fp8-block").folder), "target")
    with pytest.raises(ModelError, match=r"quantised already \(FP8 in blocks, fp8\); leave model\.quantize"):
        plan_weights(source, dtype="bfloat16", device="cuda", quantize="fp8")
