"""Small draft/target pairs of every architecture that is promised, built once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
import torch
from support.engines import perturbed
from support.small_models import make_small_model

from specpipe.engine.forward.attention_interface import register
from specpipe.models.loader import load_model
from specpipe.models.source import resolve


class SmallPair(NamedTuple):
    target: torch.nn.Module
    draft: torch.nn.Module
    """The target with noise on its weights: right at times, wrong at times."""
    reference_draft: torch.nn.Module
    """The target once more: always right."""
    reference: torch.nn.Module
    """The target once more, with transformers' own attention."""
    vocab_size: int


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SmallPair]:
    register()

    @cache
    def build(kind: str, *, seed: int = 0, vocab_size: int = 320) -> SmallPair:
        changes = {} if vocab_size == 320 else {"bos_token_id": None, "eos_token_id": None}
        folder = tmp_path_factory.mktemp(f"{kind}-{seed}-{vocab_size}")
        source = resolve(str(make_small_model(kind, folder, seed=seed, vocab_size=vocab_size, **changes)), "target")
        attentions = (*["specpipe"] * 3, "eager")
        models = [load_model(source, "cpu", torch.float32, attention) for attention in attentions]
        # transformers' generate looks at these; the engine is told its own.
        models[3].generation_config.eos_token_id = None
        draft = perturbed(models[1], models[0], noise=0.05)
        return SmallPair(models[0], draft, models[2], models[3], vocab_size)

    return build
