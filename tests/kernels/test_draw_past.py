"""A draw that computes noise only where a score may pass one that is known: the same token as with noise everywhere."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from support.sampling_cases import BACKENDS, Backend, to
from torch import Tensor

from specpipe_kernels.reference import philox as reference
from specpipe_kernels.triton_ops.rows import NOWHERE
from specpipe_kernels.triton_ops.tiles import draw_past, score_of_token

DEVICE = [p for p in BACKENDS if p.id != "reference"]
SEED, POSITION, PURPOSE = 7, 12, 5


@triton.jit
def _draw_kernel(row, at, draft, vocab, inverse, score, token, TILES: tl.constexpr, BLOCK: tl.constexpr):
    seed, position = tl.load(at), tl.load(at + 1)
    known = score_of_token(row, draft, vocab, inverse, row, at, 0, seed, position, 0, 5, False)
    best, drawn = draw_past(
        row, 0, vocab, vocab, inverse, row, at, 0, seed, position, 0, 5, known, tl.where(draft < 0, NOWHERE, draft),
        False, BLOCK, TILES,
    )  # fmt: skip
    tl.store(score, best)
    tl.store(token, drawn)


def draw(backend: Backend, row: Tensor, draft: int, tiles: int = 4, block: int = 128) -> tuple[float, int]:
    at = to(torch.tensor([SEED, POSITION]), backend.device)
    score = torch.zeros((), device=backend.device)
    token = torch.zeros((), dtype=torch.int32, device=backend.device)
    _draw_kernel[(1,)](to(row, backend.device), at, draft, len(row), 1 / 0.8, score, token, tiles, block, num_warps=1)
    return float(score), int(token)


def scores(row: Tensor) -> Tensor:
    noise = reference.exponential(torch.tensor([SEED]), torch.tensor([POSITION]), 0, PURPOSE, len(row))[0]
    return row.float() / 0.8 - noise.log()


ROWS = {
    "flat": lambda g: torch.randn(201, generator=g).bfloat16(),
    "equal": lambda g: torch.zeros(128),
    "peaked": lambda g: torch.randn(251, generator=g) * 9,
    "far from 0": lambda g: torch.randn(130, generator=g) - 3000,
    "mostly impossible": lambda g: torch.where(torch.rand(200, generator=g) < 0.9, -torch.inf, 1.0),
}


@pytest.mark.parametrize("backend", DEVICE)
@pytest.mark.parametrize("kind", ROWS)
def test_the_draft_does_not_change_the_draw(backend: Backend, kind: str) -> None:
    row = ROWS[kind](torch.Generator().manual_seed(3))
    expected = scores(row)
    ranked = expected.argsort(descending=True).tolist()
    for draft in (len(row), *ranked[:2]):
        score, token = draw(backend, row, draft)
        assert token == ranked[0], draft
        assert score == pytest.approx(float(expected[token]), rel=1e-6, abs=1e-5)
    assert draw(backend, row, ranked[1], tiles=1, block=64)[1] == ranked[0]


@pytest.mark.parametrize("backend", DEVICE)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_unsound_logits_are_seen_whatever_the_draft_scores(backend: Backend, bad: float) -> None:
    for at in (0, 198):
        row = torch.zeros(200)
        row[5], row[at] = 50.0, bad
        for draft in (5, at):
            score, _ = draw(backend, row, draft)
            assert score != score


@pytest.mark.parametrize("backend", DEVICE)
def test_an_impossible_row_has_no_score(backend: Backend) -> None:
    assert draw(backend, torch.full((70,), -torch.inf), 3)[0] == -torch.inf


@pytest.mark.parametrize("backend", DEVICE)
def test_a_score_that_nothing_passes_is_handed_back(backend: Backend) -> None:
    row = torch.zeros(200)
    row[5] = 500.0
    assert draw(backend, row, 5) == (pytest.approx(float(scores(row)[5]), rel=1e-6), 5)
