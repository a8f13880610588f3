"""A draft model in 8 bits: other proposals, the same output."""

from __future__ import annotations

import copy

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run, slow

from specpipe.engine.engine import Engine
from specpipe.engine.forward.fp8_weights import check_fp8
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.errors import MachineError


def engine_with(pair, device: str, *, fp8: bool, fused: bool | None, k: int = 3) -> Engine:
    """The pair's target, and its own weights as the draft: only rounding makes that wrong."""
    target = copy.deepcopy(pair.target).to(device)
    engine = make_engine(target, copy.deepcopy(pair.target).to(device), max_k=k)
    options = {"vocab_size": pair.vocab_size, "context_length": 256, "page_size": engine.config.page_size}
    draft = ModelRunner(copy.deepcopy(pair.target).to(device), **options, fp8=fp8, fused=fused)
    pages = engine._scheduler.pages.num_pages
    return Engine(
        engine.target, draft, config=engine.config, decoder=engine._scheduler._decoder, eos_ids=(), num_pages=pages
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("kind", "fused"), [("llama", True), ("gpt2", False), slow("llama", False), slow("qwen3", True)]
)
def test_greedy_tokens_equal_generate(small_pair, kind: str, fused: bool, device: str) -> None:
    pair = small_pair(kind)
    requests = make_requests(7, vocab_size=pair.vocab_size)

    completions = run(engine_with(pair, device, fp8=True, fused=fused), requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    drafted, accepted = (sum(getattr(c, f"{name}_tokens") for c in completions) for name in ("draft", "accepted"))
    assert 0.7 < accepted / drafted < 1


def test_fused_and_unfused_drafts_are_equal(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size)
    counts = [
        [(c.draft_tokens, c.accepted_tokens) for c in run(engine_with(pair, "cpu", fp8=True, fused=fused), requests, 3)]
        for fused in (False, True)
    ]
    assert counts[0] == counts[1]


def test_every_projection_is_rounded_and_nothing_else(small_pair) -> None:
    pair = small_pair("llama")
    model = copy.deepcopy(pair.target)
    ModelRunner(model, vocab_size=pair.vocab_size, context_length=64, page_size=16, fp8=True)
    for (name, now), before in zip(model.named_parameters(), pair.target.parameters(), strict=True):
        changed = not torch.equal(now, before)
        assert changed == ("proj" in name or "lm_head" in name), name


def test_a_gpu_without_fp8_raises_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    with pytest.raises(MachineError, match=r"A100 has compute capability 8\.0; expected 8\.9 or newer"):
        check_fp8(torch.device("cuda"))
    check_fp8(torch.device("cpu"))
