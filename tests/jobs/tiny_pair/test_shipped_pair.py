"""The shipped weights have the properties in docs/tiny-pair.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from jobs.tiny_pair.evaluate import acceptance_length, accuracy, agreement, generate, repetition
from jobs.tiny_pair.network import END_OF_TEXT_ID, END_OF_TURN_ID, load, parameters
from jobs.tiny_pair.problems import problems
from specpipe.models.tiny import DRAFT, TARGET

TOKENIZER: Any = AutoTokenizer.from_pretrained(TARGET)


@pytest.fixture(scope="module")
def target() -> Any:
    return load(TARGET)


@pytest.fixture(scope="module")
def draft() -> Any:
    return load(DRAFT)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def speculate(target: Any, draft: Any, ids: torch.Tensor, new_tokens: int, k: int) -> tuple[list[int], float]:
    """Greedy speculation as the papers write it, one row, no cache: the tokens and 1 + accepted / drafts."""
    text, end, drafts, accepted = ids.tolist(), len(ids) + new_tokens, 0, 0
    while len(text) < end:
        proposed = list(text)
        for _ in range(min(k, end - len(text) - 1)):
            proposed.append(int(draft(torch.tensor([proposed])).logits[0, -1].argmax()))
        choices = target(torch.tensor([proposed])).logits[0, len(text) - 1 :].argmax(-1).tolist()
        wanted = proposed[len(text) :]
        run = next((i for i, token in enumerate(wanted) if token != choices[i]), len(wanted))
        drafts, accepted = drafts + bool(wanted), accepted + run
        text += choices[: run + 1]
    return text[len(ids) :], 1 + accepted / drafts


def test_the_pair_fits_into_12_megabytes() -> None:
    assert folder_bytes(TARGET) + folder_bytes(DRAFT) <= 12_000_000


def test_the_draft_has_about_a_tenth_of_the_parameters(target: Any, draft: Any) -> None:
    assert 0.08 <= parameters(draft) / parameters(target) <= 0.12


@pytest.mark.parametrize("folder", [TARGET, DRAFT])
def test_the_configuration_is_one_that_the_tokenizer_fits(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.vocab_size) == ("llama", len(TOKENIZER))
    assert (config.eos_token_id, config.pad_token_id) == (END_OF_TURN_ID, END_OF_TEXT_ID)


@pytest.mark.slow
def test_only_the_target_solves_heldout_problems(target: Any, draft: Any) -> None:
    found = problems("heldout", 16, seed=7)
    solved = accuracy(target, TOKENIZER, found)
    assert solved >= 0.85
    assert accuracy(draft, TOKENIZER, found) <= solved - 0.2


@torch.inference_mode()
def test_acceptance_length_equals_step_by_step_speculation(target: Any, draft: Any) -> None:
    ids, mask = generate(target, TOKENIZER, ["Name three trees.", "What is gravity?"], 41)
    agrees = agreement(draft, ids, mask, 41)
    for row, prompt_mask, agree in zip(ids, mask, agrees, strict=True):
        prompt = row[prompt_mask.bool()][:-41]
        tokens, length = speculate(target, draft, prompt, 41, k=3)
        assert tokens == row[-41:].tolist()
        assert length == pytest.approx(acceptance_length(agree[None], 3))


def test_acceptance_length_counts_rounds_and_the_last_token_alone() -> None:
    agrees = torch.tensor([[True, True, True, False, False, True, True]])
    # rounds: 3 accepted + recovered, 0 accepted + recovered, 1 accepted (only 2 tokens are left) + bonus
    assert acceptance_length(agrees, 3) == pytest.approx(1 + 4 / 3)


@pytest.mark.slow
def test_acceptance_on_the_sample_dataset_without_loops(target: Any, draft: Any) -> None:
    from jobs.tiny_pair.corpus import sample

    rows = sample(32)
    prompts = [turns[0]["value"] for row in rows if isinstance(turns := row["conversations"], list)]
    ids, mask = generate(target, TOKENIZER, prompts, 300)
    assert acceptance_length(agreement(draft, ids, mask, 300), 3) >= 2.3
    assert repetition(ids[:, -300:]) <= 0.1
