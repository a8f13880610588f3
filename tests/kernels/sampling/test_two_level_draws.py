"""Two-level draws: the oracle's tokens for any split of rows into programs, and the right frequencies."""

from __future__ import annotations

import pytest
import torch
from support import sampling_oracle as oracle
from support.chi_squared import p_value
from support.sampling_cases import (
    Backend,
    emitted,
    on_backends,
    random_round,
    random_rows,
    run,
    same_rows,
    use_small_tiles,
)
from support.sampling_cases import sampling as tensors
from torch import Tensor

from specpipe_kernels import Purpose, rejection_sample, sample, sample_recovered_tokens, types

# Programs of all rows: one chunk a program, and all chunks of a row in one.
CUTS = [528, 1]  # programs: one for each chunk, one for each row
VOCAB = 75  # five chunks of 16, the last one short


def check(backend: Backend, logits: Tensor, rows: list[oracle.Row], purpose: Purpose = Purpose.BONUS) -> None:
    at = torch.tensor([r.position for r in rows])
    out = run(backend, sample, logits, tensors(rows), at, purpose=purpose)
    expected = [oracle.sample(x.double().numpy(), r, purpose, 0) for x, r in zip(logits, rows, strict=True)]
    assert out.tokens.tolist() == [e[0] for e in expected]
    lse = torch.tensor([e[1] for e in expected], dtype=torch.float64)
    torch.testing.assert_close(out.lse, lse, rtol=1e-5, atol=1e-5)


def random_residual(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(rows, VOCAB, generator=g).mul(2).softmax(-1) for _ in range(2))
    return p, q


def test_chunk_size_is_fixed() -> None:
    assert types.CHUNK == oracle.CHUNK == 2048


@on_backends(programs=CUTS, purpose=[Purpose.DRAFT, Purpose.INVARIANT])
def test_sample(backend: Backend, programs: int, purpose: Purpose, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_tiles(monkeypatch, 16, programs=programs)
    g = torch.Generator().manual_seed(int(purpose))
    check(backend, torch.randn(5, VOCAB, generator=g).mul(2), random_rows(5, g, truncated=True), purpose)


@on_backends(programs=CUTS)
def test_chunks_of_real_size(backend: Backend, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe_kernels.sampling.device.logit_rows.max_programs", lambda device: programs)
    g = torch.Generator().manual_seed(7)
    rows = random_rows(3, g, truncated=False)
    check(backend, torch.randn(3, 4801, generator=g).mul(2).bfloat16(), rows)


@on_backends(programs=CUTS, method=["standard", "block"], one_hot=[False, True])
def test_recovered_and_bonus_tokens(
    backend: Backend, programs: int, method: str, one_hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_tiles(monkeypatch, 16, programs=programs)
    draft_vocab = None if one_hot else VOCAB - 20
    case = random_round(vocab=VOCAB, draft_vocab=draft_vocab, k=1, rows=4, method=method, truncated=False, seed=5)
    out = case.verify(backend, truncated=False)
    assert emitted(out) == case.expected()


@on_backends(0, programs=CUTS)
def test_an_empty_residual_draws_p(backend: Backend, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_tiles(monkeypatch, 16, programs=programs)
    case = random_round(vocab=VOCAB, draft_vocab=VOCAB, k=1, rows=4, method="synthetic", truncated=False, seed=3)
    assert case.draft_rows is not None
    rows = [oracle.Row(seed=r.seed, position=r.position) for r in case.rows]
    q = torch.zeros(6, 1, VOCAB)
    q[case.draft_rows, 0] = case.target_logits[::2]
    case = case.with_(draft_logits=q, rows=rows, synthetic_rates=torch.zeros(1))
    out = case.verify(backend, truncated=False)
    assert emitted(out) == case.expected()


@on_backends(programs=CUTS)
def test_masses_that_overflow_with_the_first_reference(
    backend: Backend, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masses refer to the first chunk's largest logit: far larger logits overflow, and -inf is no reference."""
    use_small_tiles(monkeypatch, 16, programs=programs)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, :16] -= 4000
    logits[1, :16] = -torch.inf
    logits[1, 16:] -= 4000
    logits[2, 20:60] = -torch.inf
    check(backend, logits, [oracle.Row(seed=s, position=2) for s in range(3)])


@on_backends(programs=CUTS)
def test_invalid_rows(backend: Backend, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_tiles(monkeypatch, 16, programs=programs)
    logits = torch.zeros(4, VOCAB)
    logits[0, 70] = torch.nan
    logits[1, 30] = torch.inf
    logits[2] = -torch.inf
    rows = tensors([oracle.Row(seed=s) for s in range(4)], truncated=False)
    out = run(backend, sample, logits, rows, torch.zeros(4).long(), purpose=Purpose.BONUS)
    assert out.status.tolist() == [1, 1, 2, 0]
    assert out.tokens[:3].tolist() == [-1] * 3 and 0 <= int(out.tokens[3]) < VOCAB


@on_backends(one_hot=[False, True])
def test_recovered_from_probabilities(backend: Backend, one_hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two rows have an empty residual and no mass at all."""
    use_small_tiles(monkeypatch, 16)
    p, q = random_residual(5, 2)
    ids = torch.tensor([0, 17, 74, 3, 9])
    p[3], p[4] = 0.0, 0.0
    p[3, 3] = 1.0
    q[3:] = p[3:]
    keys = list(zip(range(5), range(10, 15), strict=True))
    noise = {"seeds": torch.arange(5), "positions": torch.arange(10, 15)}
    out = run(backend, sample_recovered_tokens, p, None if one_hot else q, ids, **noise)
    left = (p - q).clamp(min=0)
    if one_hot:
        left = p.clone()
        left[range(5), ids] = 0
    left[3] = p[3]
    drawn = [oracle.draw_keyed(left[r].double().numpy(), *keys[r], 0, oracle.RECOVERED) for r in range(4)]
    assert out.tolist() == [*drawn, -1]


def test_tokens_are_drawn_in_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4, of unequal mass: plain draws, and residuals of p and q."""
    use_small_tiles(monkeypatch, 4)
    g = torch.Generator().manual_seed(4)
    p, q, rows = torch.randn(2, 10, generator=g), torch.randn(10, generator=g), 40_000
    s, at = same_rows(rows), torch.full((rows,), 3)
    pairs = sample(p[:1].expand(rows, 10), s, at, purpose=Purpose.DRAFT).tokens
    assert p_value(pairs, p[0].softmax(-1)) > 1e-4
    drafts = sample(q.expand(rows, 10), s, at, purpose=Purpose.DRAFT).tokens[:, None]
    counts = torch.ones(rows, dtype=torch.int32)
    out = rejection_sample(
        p.expand(rows, 2, 10).reshape(-1, 10), drafts, counts, at, s, draft_logits=q.expand(rows, 1, 10)
    )
    assert p_value(out.tokens[:, 0], p[0].softmax(-1)) > 1e-4
    accepted = out.num_accepted == 1
    assert p_value(out.tokens[accepted, 1], p[1].softmax(-1)) > 1e-4
    residual = (p[0].double().softmax(-1) - q.double().softmax(-1)).clamp(min=0)
    rejected_of = drafts[~accepted, 0] * 10 + out.tokens[~accepted, 0]
    falls = (q.double().softmax(-1) - p[0].double().softmax(-1)).clamp(min=0)
    assert p_value(rejected_of, falls[:, None] * residual) > 1e-4
