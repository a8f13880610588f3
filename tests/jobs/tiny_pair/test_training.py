"""The training script runs from the corpus to two saved models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.tiny_pair.network import MAX_LENGTH, build, load, save
from jobs.tiny_pair.packing import token_windows
from jobs.tiny_pair.train import Recipe, imitation, next_token, pack_corpus, train_draft, train_target, write

SMALL = Recipe(windows=8, batch=1, target_steps=2, draft_steps=2, written=2)


@pytest.mark.slow
def test_windows_depend_on_the_seed_alone() -> None:
    file = str(Path(__file__).parents[3] / "specpipe" / "models" / "tiny" / "target" / "tokenizer.json")
    first = token_windows(file, seed=1, count=3, length=96)
    assert first.shape == (3, 96) and (first[:, 0] == 1).all()  # every window opens a turn
    np.testing.assert_array_equal(first, token_windows(file, seed=1, count=3, length=96))
    assert (first != token_windows(file, seed=2, count=3, length=96)).any()


def test_imitation_is_least_where_the_draft_equals_the_target() -> None:
    torch.manual_seed(0)
    wanted = 30 * torch.randn(2, 5, 11)
    same, other = imitation(wanted, wanted), imitation(torch.randn(2, 5, 11), wanted)
    assert same.item() == pytest.approx(0, abs=0.2)
    assert other > same + 1


def test_next_token_loss_looks_one_token_ahead() -> None:
    ids = torch.tensor([[3, 1, 2]])
    logits = torch.full((1, 3, 4), -40.0)
    logits[0, 0, 1] = logits[0, 1, 2] = 40.0
    assert next_token(logits, ids).item() == pytest.approx(0)


def test_a_saved_model_is_the_trained_one_in_bf16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("draft")
    save(model, tmp_path)
    for name, value in load(tmp_path).state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name].to(torch.bfloat16).float(), rtol=0, atol=0)


@pytest.mark.slow
def test_training_goes_from_the_corpus_to_two_saved_models(tmp_path: Path) -> None:
    windows = pack_corpus(tmp_path, SMALL, "cpu")
    assert windows.shape == (8, MAX_LENGTH)
    train_target(tmp_path, windows, SMALL)
    written = write(load(tmp_path / "target"), windows[-SMALL.written :], 256)
    assert written.shape == (2, 256)
    train_draft(tmp_path, windows, written, SMALL)
    assert load(tmp_path / "draft").config.hidden_size < load(tmp_path / "target").config.hidden_size
