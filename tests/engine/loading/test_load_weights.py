"""load_weights: logits and greedy tokens of every quantised format, and of weights quantised at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run, slow
from support.quantized_checkpoints import FORMATS, QuantizedCheckpoint, write_checkpoint
from torch import Tensor

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.loading.load_weights import load_weights
from specpipe.models.source import resolve

TOKENS = torch.tensor([[5, 77, 31, 200, 9, 310]])


def load(checkpoint: QuantizedCheckpoint, attention: str = "eager", **options: Any) -> Any:
    return load_weights(resolve(str(checkpoint.folder), "target"), "cpu", torch.float32, attention, **options)


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits[0].double()


@pytest.mark.parametrize("name", FORMATS)
def test_logits_equal_those_of_the_stored_values(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, name)
    expected = logits(checkpoint.reference)
    torch.testing.assert_close(logits(load(checkpoint)), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize(
    ("name", "kind"), [("ct-dynamic", "llama"), ("awq", "qwen3"), *(slow(name, "llama") for name in FORMATS)]
)
def test_greedy_tokens_equal_generate_on_the_stored_values(name: str, kind: str, tmp_path: Path) -> None:
    register()
    checkpoint = write_checkpoint(tmp_path, name, kind=kind)
    model = load(checkpoint, "specpipe")
    requests = make_requests(4, vocab_size=320, max_new_tokens=12)

    completions = run(make_engine(model, model, max_k=2), requests, 2)

    assert [list(c.token_ids) for c in completions] == generate(checkpoint.reference.float(), requests)
