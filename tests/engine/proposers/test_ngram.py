"""Prompt lookup: the longest suffix first, its latest earlier occurrence, and no more tokens than follow there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specpipe.core import EngineConfig
from specpipe.engine.proposers.ngram import NGramProposer

PAGE = 4


def propose(*texts: list[int], k: int, max_drafts: int = 9, longest: int = 3, shortest: int = 1) -> list[list[int]]:
    """Returns the drafts for each text. The slot holds tokens of an earlier row behind it."""
    width = 4 * PAGE
    tokens = torch.tensor([text + [7] * (width - len(text)) for text in texts])
    rows = SimpleNamespace(
        slots=torch.arange(len(texts)),
        lengths=torch.tensor([len(text) for text in texts]),
        max_drafts=torch.full((len(texts),), min(max_drafts, k), dtype=torch.int32),
        block_tables=torch.zeros(len(texts), width // PAGE, dtype=torch.int32),
    )
    config = EngineConfig(ngram_max=longest, ngram_min=shortest, page_size=PAGE)
    state = SimpleNamespace(tokens=tokens, length=rows.lengths)
    found = NGramProposer(config).propose(state, rows, k)
    assert found.logits is None
    return [row[:n].tolist() for row, n in zip(found.tokens, found.num_tokens.tolist(), strict=True)]


def test_the_longest_suffix_that_occurred_before_decides() -> None:
    text = [5, 6, 7, 1, 9, 7, 2, 5, 6, 7]
    assert propose(text, k=3) == [[1, 9, 7]]
    assert propose(text, k=3, longest=1) == [[2, 5, 6]]


def test_the_latest_of_several_occurrences_decides() -> None:
    assert propose([7, 1, 7, 2, 7], k=1, longest=1) == [[2]]


def test_drafts_end_with_the_text_or_the_limit() -> None:
    assert propose([3, 4, 5, 3], k=5) == [[4, 5, 3]]
    assert propose([3, 4, 5, 3], k=5, max_drafts=2) == [[4, 5]]
    assert propose([3, 3], [4, 4, 4], [1, 2, 1], k=2) == [[3], [4], [2, 1]]


@pytest.mark.parametrize("text", [[1], [1, 2, 3], [7, 8]])
def test_tokens_behind_the_text_are_never_proposed(text: list[int]) -> None:
    assert propose(text, k=2) == [[]]


def test_suffixes_below_the_minimum_are_not_searched() -> None:
    assert propose([1, 9, 2, 1], k=1, shortest=2) == [[]]
