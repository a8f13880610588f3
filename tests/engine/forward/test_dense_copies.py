"""Dense copies of 4-bit weights: which are made within a budget, their values, and logits with and without them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import PlainDecoder
from support.quantized_checkpoints import write_checkpoint

from specpipe.core import EngineConfig
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.quantized_linear import DenseCopies
from specpipe.engine.kv_memory import sized_engine
from specpipe.engine.loading.load_weights import load_weights
from specpipe.models.quantization.planned_weights import plan_weights
from specpipe.models.source import ModelSource, resolve
from specpipe_kernels import QuantizedWeight, dequantize, quantize_fp8


def four_bits(n: int, k: int) -> QuantizedWeight:
    return QuantizedWeight(torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), torch.rand(n, k // 64), None, (1, 64))


def test_copies_of_weights_are_made_while_they_fit() -> None:
    first, large, small = four_bits(16, 128), four_bits(64, 128), four_bits(8, 128)
    copies = DenseCopies(2 * 128 * (16 + 8), torch.bfloat16)
    eight, dense = quantize_fp8(torch.randn(4, 128)), torch.randn(4, 128)
    assert copies.add(eight) is eight and copies.add(dense) is dense and copies.bytes == 0
    made = [copies.add(weight) for weight in (first, large, small, small)]
    assert [one.dense is not None for one in made if isinstance(one, QuantizedWeight)] == [True, False, True, False]
    assert copies.bytes == 2 * 128 * (16 + 8)
    assert isinstance(made[0], QuantizedWeight) and made[0].dense is not None
    assert torch.equal(made[0].dense, dequantize(first, torch.bfloat16))


def source_of(folder: Path) -> ModelSource:
    register()
    return resolve(str(write_checkpoint(folder, "awq", spread=0.2, intermediate_size=512).folder), "target")


def runner_of(source: ModelSource) -> ModelRunner:
    model: Any = load_weights(source, "cuda", torch.bfloat16)
    return ModelRunner(model, vocab_size=model.config.vocab_size, context_length=256, page_size=64)


def logits(runner: ModelRunner, rows: int) -> torch.Tensor:
    """Returns the logits [rows, V] of a row of so many tokens, from an empty cache."""
    runner.allocate_pages(5)
    positions = torch.arange(rows, device="cuda")
    return runner.forward(
        positions * 7 % 320,
        positions,
        block_tables=torch.arange(1, 5, dtype=torch.int32, device="cuda")[None],
        cu_queries=torch.tensor([0, rows], dtype=torch.int32, device="cuda"),
        starts=positions[:1],
        max_queries=rows,
        keep=0,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [64, 65, 200])
def test_logits_with_copies_are_those_without(tmp_path: Path, rows: int) -> None:
    runner = runner_of(source_of(tmp_path))
    without = logits(runner, rows)
    before = torch.cuda.memory_allocated()
    runner.keep_dense_copies(sys.maxsize)
    assert 0 < runner.copy_bytes <= torch.cuda.memory_allocated() - before < runner.copy_bytes + (1 << 20)
    with_copies = logits(runner, rows)
    assert float((with_copies - without).double().norm() / without.double().norm()) < 0.05
    assert torch.equal(with_copies, without) == (rows <= 64)


@pytest.mark.gpu
def test_engine_keeps_the_planned_copies_beside_its_pages(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    config = EngineConfig(slots=4, max_model_len=200, proposer="none")

    def engine(*, copies: bool, budget: int | None = None) -> Any:
        from specpipe.engine import kv_memory

        with pytest.MonkeyPatch.context() as patch:
            if budget is not None:
                patch.setattr(kv_memory, "_gpu_budget", lambda engine: budget)
            made = EngineConfig(slots=4, max_model_len=200, proposer="none", dense_copies=copies)
            return sized_engine([runner_of(source)], made, PlainDecoder(), ())

    planned = plan_weights(source, dtype="bfloat16", device="cuda", quantize="none")
    full, plain = engine(copies=True), engine(copies=False)
    assert full.target.copy_bytes == planned.copies > 0 == plain.target.copy_bytes
    pages = 4 * config.pages_per_row
    assert full.kv_pages == plain.kv_pages == pages
    exact = (pages + 1) * full.target.page_bytes
    assert engine(copies=True, budget=exact).target.copy_bytes == 0, "pages come first"
    some = engine(copies=True, budget=exact + planned.copies // 2)
    assert some.kv_pages == pages and 0 < some.target.copy_bytes <= planned.copies // 2
