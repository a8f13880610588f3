"""Ties and near-ties of the largest logits are drawn in proportion also where logits over temperature exceed 1e7.

Many draws are tested by chi-square. The interpreter, which takes 20 ms a row, draws few: those of the reference.
"""

from __future__ import annotations

import pytest
import torch
from support.chi_squared import p_value
from support.sampling_cases import BACKENDS, INTERPRETER, Backend, on_backends, run, same_rows, use_small_tiles
from torch import Tensor

from specpipe_kernels import Purpose, SamplingTensors, rejection_sample, sample, token_logprobs

STEP = 2.0**-19  # from one fp32 logit near 30 to the next
# The largest logits: equal ones, neighbours in fp32, equal ones below zero, and of 1e6 at temperature 1.
ROWS = [
    ([30.0, 30.0, 30.0, 30.0], 1e-5),
    ([30.0, 30.0, 30.0, 30.0], 1e-6),
    ([30.0, 30.0 - STEP, 30.0 - 2 * STEP, 30.0], 2e-6),
    ([-30.0, -30.0, -30.0, -30.0], 1e-6),
    ([2.0**20, 2.0**20 + 0.5, 2.0**20 - 1, 2.0**20], 1.0),
]


def rows_of(backend: Backend, vocab: int, few: int = 2) -> tuple[Tensor, SamplingTensors, int]:
    """Returns logits [R, V], whose largest entries are spread over the vocabulary, and the draws of each of ROWS.

    few: draws in the interpreter.
    """
    draws = few if backend == INTERPRETER else 4000
    logits = torch.full((len(ROWS), vocab), -1000.0)
    for row, (largest, _) in zip(logits, ROWS, strict=True):
        row[torch.arange(4) * ((vocab - 1) // 3)] = torch.tensor(largest)
    s = same_rows(draws * len(ROWS))
    temperature = torch.tensor([t for _, t in ROWS]).repeat_interleave(draws)
    return logits.repeat_interleave(draws, 0), s._replace(temperature=temperature), draws


def check(tokens: Tensor, vocab: int, draws: int) -> None:
    if draws < 100:
        return
    for drawn, (largest, temperature) in zip(tokens.view(-1, draws), ROWS, strict=True):
        drawn = drawn[drawn >= 0]
        assert (drawn % ((vocab - 1) // 3) == 0).all()
        p = (torch.tensor(largest).double() / temperature).softmax(-1)
        assert p_value(drawn // ((vocab - 1) // 3), p) > 1e-4, (largest, temperature)


@on_backends(cut=[(16, 2), (50, 2), (50, 400)], purpose=[Purpose.BONUS, Purpose.INVARIANT])
def test_draws_of_ties(
    backend: Backend, cut: tuple[int, int], purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one chunk, of the four chunks of a program or two, and of four programs."""
    vocab, programs = cut
    use_small_tiles(monkeypatch, 16, programs=programs)
    logits, s, draws = rows_of(backend, vocab, few=2 if programs == 2 else 16)
    call = logits, s, torch.full((len(logits),), 5)
    drawn = run(backend, sample, *call, purpose=purpose)
    assert torch.equal(drawn.tokens, sample(*call, purpose=purpose).tokens)
    check(drawn.tokens, vocab, draws)


@on_backends(method=["standard", "block", "invariant"], given=[True, False], vocab=[16, 50])
def test_verified_ties(backend: Backend, method: str, given: bool, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """q, which the drafts are drawn from, prefers two of the four less than p: one draft and one token behind it."""
    use_small_tiles(monkeypatch, 16, programs=100)
    p, s, draws = rows_of(backend, vocab, few=2 if vocab == 16 else 8)
    q = p - 16.0  # exact; another fraction is lost than that of p
    for place, steps in ((0, 1), (3, 2)):
        token = place * ((vocab - 1) // 3)
        for _ in range(steps):
            q[:, token] = q[:, token].nextafter(torch.tensor(-torch.inf))
    at = torch.full((len(p),), 5)
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT
    drafts = run(backend, sample, q, s, at, purpose=purpose)
    call = p.repeat_interleave(2, 0), drafts.tokens[:, None], torch.ones(len(p), dtype=torch.int32), at, s
    lse = drafts.lse[:, None] if given else None
    out = run(backend, rejection_sample, *call, method=method, draft_logits=q[:, None], draft_lse=lse)
    assert torch.equal(
        out.tokens, rejection_sample(*call, method=method, draft_logits=q[:, None], draft_lse=lse).tokens
    )
    for i in range(2):
        check(out.tokens[:, i], vocab, draws)


@pytest.mark.parametrize("backend", BACKENDS)
def test_truncated_near_ties(backend: Backend) -> None:
    """min-p keeps what lies above it: at 2e-6 the neighbour has 0.39 of the largest probability, the next one 0.15."""
    p, s, draws = rows_of(backend, 16)
    kept = p[2 * draws : 3 * draws]
    count = len(kept)
    for min_p, most in ((0.2, 5), (0.1, 10), (0.5, 0)):
        s = same_rows(count, temperature=2e-6, min_p=min_p)
        call = kept, s, torch.full((count,), 5)
        tokens = run(backend, sample, *call, purpose=Purpose.BONUS).tokens
        assert torch.equal(tokens, sample(*call, purpose=Purpose.BONUS).tokens)
        assert count < 100 or set(tokens.tolist()) == {0, most, 15} | ({5} if min_p == 0.1 else set())


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probabilities_of_ties(backend: Backend) -> None:
    logits = torch.full((1, 16), -1000.0)
    logits[0, :4] = torch.tensor(ROWS[2][0])
    s = same_rows(1, temperature=2e-6)
    out = run(backend, token_logprobs, logits, torch.tensor([[1]]), torch.tensor([1]).int(), s, top_n=4)
    expected = (torch.tensor(ROWS[2][0]).double() / 2e-6).log_softmax(-1)
    torch.testing.assert_close(out.logprobs[0, 0].double(), expected[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(out.top_logprobs[0, 0].double(), expected.sort(descending=True)[0], atol=1e-5, rtol=0)
