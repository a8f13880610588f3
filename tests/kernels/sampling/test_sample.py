"""`sample`, reference and Triton, against the fp64 oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import sampling_oracle as oracle
from support.sampling_cases import BACKENDS, HEAVY, Backend, random_rows, run, sampling

from specpipe_kernels import Purpose, Sampled, sample
from specpipe_kernels.sampling.device import logit_rows as triton_rows


def check(backend: Backend, logits: torch.Tensor, rows: list[oracle.Row], purpose: Purpose, index: int, **hints: bool):
    positions = torch.tensor([r.position for r in rows])
    out: Sampled = run(backend, sample, logits, sampling(rows, **hints), positions, purpose=purpose, index=index)
    expected = [oracle.sample(x.double().numpy(), r, purpose, index) for x, r in zip(logits, rows, strict=True)]
    assert out.tokens.tolist() == [e[0] for e in expected]
    assert out.status.tolist() == [e[2] for e in expected]
    sound = out.status == 0
    lse = torch.tensor([e[1] for e in expected], dtype=torch.float64)
    torch.testing.assert_close(out.lse[sound], lse[sound], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [16, 100, 1031])
def test_equals_oracle(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    g = torch.Generator().manual_seed(vocab)
    rows = random_rows(7, g, truncated=True)
    logits = torch.randn(7, vocab + 3, generator=g).mul_(2).to(dtype)[:, :vocab]
    check(backend, logits, rows, Purpose.DRAFT, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("purpose", [Purpose.BONUS, Purpose.INVARIANT])
def test_without_truncation(backend: Backend, purpose: Purpose) -> None:
    g = torch.Generator().manual_seed(5)
    rows = random_rows(4, g, truncated=False)
    check(backend, torch.randn(4, 100, generator=g), rows, purpose, 1, truncated=False)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vocab", [8193, 10000, 128256])
def test_large_vocabulary(backend: Backend, vocab: int) -> None:
    g = torch.Generator().manual_seed(vocab)
    rows = [oracle.Row(seed=3, position=9), oracle.Row(seed=4, top_k=50, top_p=0.9, temperature=0.8)]
    check(backend, torch.randn(2, vocab, generator=g).mul_(2).bfloat16(), rows, Purpose.BONUS, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_ties_take_the_lowest_index(
    backend: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    logits = torch.full((2, 100), -3.0, dtype=dtype)
    logits[0, [7, 40, 99]] = 1.5
    logits[1] = 0.25
    rows = [oracle.Row(temperature=0.0)] * 2
    for hint in (False, True):
        out = run(
            backend, sample, logits, sampling(rows, all_greedy=hint), torch.zeros(2).long(), purpose=Purpose.BONUS
        )
        assert out.tokens.tolist() == [7, 0]
        assert out.lse.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_vocab_size_limits_the_draw(backend: Backend) -> None:
    """A draft's vocabulary may be padded beyond the target's; its padding must not be drawn."""
    logits = torch.zeros(3, 64)
    logits[:, 50:] = 30.0
    rows = [oracle.Row(seed=s, position=1) for s in range(2)] + [oracle.Row(temperature=0.0)]
    positions = torch.ones(3, dtype=torch.int64)
    out = run(backend, sample, logits, sampling(rows, truncated=False), positions, purpose=Purpose.DRAFT, vocab_size=50)
    cut = logits[:, :50].double().numpy()
    expected = [oracle.sample(x, r, Purpose.DRAFT, 0)[0] for x, r in zip(cut, rows, strict=True)]
    assert out.tokens.tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_independent(backend: Backend) -> None:
    g = torch.Generator().manual_seed(9)
    rows = random_rows(3, g, truncated=False)
    logits = torch.randn(3, 40, generator=g)
    spoilt = logits.clone()
    spoilt[1] = torch.nan
    positions = torch.tensor([r.position for r in rows])
    hints = {"truncated": False}
    alone = run(backend, sample, logits, sampling(rows, **hints), positions, purpose=Purpose.DRAFT)
    beside = run(backend, sample, spoilt, sampling(rows, **hints), positions, purpose=Purpose.DRAFT)
    assert beside.tokens.tolist() == [alone.tokens[0], -1, alone.tokens[2]]
    assert beside.status.tolist() == [0, 1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_tiny_temperature_is_the_argmax(backend: Backend) -> None:
    rows = [oracle.Row(temperature=t, seed=1) for t in (1e-6, 1e-30, 1e-42)]
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    out = run(backend, sample, logits, sampling(rows), torch.zeros(3).long(), purpose=Purpose.BONUS)
    assert out.tokens.tolist() == logits.argmax(-1).tolist()
    assert out.status.tolist() == [0, 0, 0]


def test_invariant_ignores_the_index() -> None:
    rows = [replace(oracle.Row(), seed=s, position=4) for s in range(20)]
    logits, at = torch.zeros(20, 16), torch.full((20,), 4)
    draws = [sample(logits, sampling(rows), at, purpose=Purpose.INVARIANT, index=i).tokens for i in (0, 5)]
    others = [sample(logits, sampling(rows), at, purpose=Purpose.DRAFT, index=i).tokens for i in (0, 5)]
    assert torch.equal(*draws) and not torch.equal(*others)


def test_arguments_that_do_not_fit() -> None:
    rows = sampling([oracle.Row()] * 2)
    at = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"logits \[16\].*expected \[R, V\]"):
        sample(torch.zeros(16), rows, at, purpose=Purpose.DRAFT)
    with pytest.raises(ValueError, match=r"expected one entry per row: \[3\]"):
        sample(torch.zeros(3, 16), rows, at, purpose=Purpose.DRAFT)
    with pytest.raises(ValueError, match="V contiguous"):
        sample(torch.zeros(16, 2).T, rows, at, purpose=Purpose.DRAFT)
    with pytest.raises(ValueError, match="vocab_size=0"):
        sample(torch.zeros(2, 16), rows, at, purpose=Purpose.DRAFT, vocab_size=0)


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPIPE_KERNELS", "cuda")
    with pytest.raises(ValueError, match="expected 'reference', 'triton'"):
        sample(torch.zeros(1, 4), sampling([oracle.Row()]), torch.zeros(1).long(), purpose=Purpose.DRAFT)
