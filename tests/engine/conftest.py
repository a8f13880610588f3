"""Small draft/target pairs of every supported architecture, built once a session."""

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
    """The target with noise on its weights: its drafts are sometimes accepted."""
    reference_draft: torch.nn.Module
    """A copy of the target: its drafts are always accepted."""
    reference: torch.nn.Module
    """A copy of the target with transformers' own attention; tests never change it."""
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
        # transformers' generate would stop at these; tests pass their own ids.
        models[3].generation_config.eos_token_id = None
        draft = perturbed(models[1], models[0], noise=0.05)
        return SmallPair(models[0], draft, models[2], models[3], vocab_size)

    return build
