"""`token_logprobs`, reference and Triton, against the fp64 oracle: mixed rows, truncation, ragged layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.sampling_cases import BACKENDS, HEAVY, Backend, Round, on_backends, random_round, run, sampling

from specpipe_kernels import METHODS, Bounds, RejectionOutput, TokenLogprobs, token_logprobs
from specpipe_kernels.sampling.device import logit_rows as triton_rows


def log_probs(case: Round, r: int, i: int) -> np.ndarray:
    """Returns log p over the vocabulary at position i of a request."""
    start = r * (case.draft_tokens.shape[1] + 1) if case.cu_rows is None else int(case.cu_rows[r])
    logits = case.target_logits[start + i].double()
    if case.rows[r].temperature == 0:
        return logits.log_softmax(-1).numpy()
    with np.errstate(divide="ignore"):
        return np.log(oracle.distribution(logits.numpy(), case.rows[r]))


def logprobs(
    backend: Backend, case: Round, out: RejectionOutput, top_n: int, *, bounds: Bounds | None = None, **hints: bool
) -> TokenLogprobs:
    result: TokenLogprobs = run(
        backend, token_logprobs, case.target_logits, out.tokens, out.num_emitted, sampling(case.rows, **hints),
        top_n=top_n, cu_rows=case.cu_rows, bounds=bounds,
    )  # fmt: skip
    return result


def check(backend: Backend, case: Round, top_n: int, **hints: bool) -> None:
    out = case.verify(Backend("reference", "cpu"))
    got = logprobs(backend, case, out, top_n, **hints)
    for r, emitted in enumerate(out.num_emitted.tolist()):
        assert got.logprobs[r, emitted:].isnan().all() and (got.top_tokens[r, emitted:] == -1).all()
        for i in range(emitted):
            expected = log_probs(case, r, i)
            assert float(got.logprobs[r, i]) == pytest.approx(expected[int(out.tokens[r, i])], abs=2e-5)
            ranking = sorted(range(len(expected)), key=lambda x: (-expected[x], x))[:top_n]
            ranking = [x if math.isfinite(expected[x]) else -1 for x in ranking]
            assert got.top_tokens[r, i].tolist() == ranking
            kept = [x for x in ranking if x >= 0]
            assert got.top_logprobs[r, i, : len(kept)].tolist() == pytest.approx(expected[kept].tolist(), abs=2e-5)
            assert got.top_logprobs[r, i, len(kept) :].isnan().all()


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ragged", [False, True])
def test_equals_the_oracle(backend: Backend, method: str, ragged: bool) -> None:
    draft_vocab = None if ragged else 57
    check(backend, random_round(vocab=61, draft_vocab=draft_vocab, k=3, rows=5, method=method, ragged=ragged), 20)


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize(("k", "ragged"), [(0, False), (2, True)])
def test_bounds_of_verification_change_nothing(backend: Backend, k: int, ragged: bool) -> None:
    case = random_round(vocab=61, draft_vocab=None, k=k, rows=3, ragged=ragged, seed=5)
    out = case.verify(backend)
    assert out.bounds is not None and out.bounds.logit.shape == (3, k + 1)
    found = logprobs(backend, case, out, 4)
    for a, b in zip(logprobs(backend, case, out, 4, bounds=out.bounds), found, strict=True):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("k", "top_n"), [(0, 0), pytest.param(0, 3, marks=pytest.mark.slow), (2, 1)])
def test_without_truncation(backend: Backend, k: int, top_n: int) -> None:
    case = random_round(vocab=100, draft_vocab=None, k=k, rows=3, truncated=False, seed=k + top_n)
    check(backend, case, top_n, truncated=False)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [16, 8193])
def test_half_precision(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    check(backend, random_round(vocab=vocab, draft_vocab=None, k=1, rows=2, dtype=dtype, seed=vocab), 16)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [BACKENDS[0], BACKENDS[2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [128256, 151936])
def test_large_vocabularies(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    check(backend, random_round(vocab=vocab, draft_vocab=None, k=1, rows=2, dtype=dtype, seed=vocab), 16)


@on_backends(dtype=[torch.bfloat16, torch.float32])
def test_ties_rank_from_the_lowest_id(backend: Backend, dtype: torch.dtype, monkeypatch) -> None:
    """Equal logits in different tiles, both zeros, and fewer possible tokens than top_n."""
    monkeypatch.setattr(triton_rows, "MAX_TILE", 16)
    logits = torch.full((3, 40), -torch.inf, dtype=dtype)
    logits[0, [38, 3, 20, 21]] = torch.tensor([2.0, 2.0, 2.0, -5.0], dtype=dtype)
    logits[1, [9, 30, 31]] = torch.tensor([-0.0, 0.0, -0.0], dtype=dtype)
    logits[2] = -1.5
    rows = [oracle.Row(temperature=0.0), oracle.Row(), oracle.Row(temperature=0.5)]
    tokens = torch.tensor([[3], [31], [39]])
    got = run(backend, token_logprobs, logits, tokens, torch.ones(3).int(), sampling(rows), top_n=5)
    assert got.top_tokens[:, 0].tolist() == [[3, 20, 38, 21, -1], [9, 30, 31, -1, -1], [0, 1, 2, 3, 4]]
    assert got.logprobs[1:, 0].tolist() == pytest.approx([math.log(1 / 3), math.log(1 / 40)], rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_emit_nothing_are_not_read(backend: Backend) -> None:
    logits = torch.full((4, 16), torch.nan)
    tokens = torch.full((2, 2), -1)
    got = run(
        backend, token_logprobs, logits, tokens, torch.zeros(2).int(), sampling([oracle.Row(top_k=3)] * 2), top_n=2
    )
    assert got.logprobs.isnan().all() and (got.top_tokens == -1).all() and got.top_logprobs.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", [oracle.Row(temperature=0.0), oracle.Row(), oracle.Row(top_k=3)])
def test_every_token_of_an_invalid_row_is_nan(backend: Backend, row: oracle.Row) -> None:
    """Given bonus tokens may stand on rows that cannot be sampled, even on the NaN itself."""
    logits = torch.linspace(-1, 1, 16).repeat(3, 1)
    logits[:, 5], logits[:, 7] = torch.nan, -torch.inf
    tokens = torch.tensor([[5], [7], [2]])
    got = run(backend, token_logprobs, logits, tokens, torch.ones(3).int(), sampling([row] * 3))
    assert got.logprobs.isnan().all()


def test_arguments_that_do_not_fit_are_named() -> None:
    rows = sampling([oracle.Row()] * 2)
    tokens, emitted = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2).int()
    with pytest.raises(ValueError, match=r"target_logits has 3 rows; expected R \* \(K\+1\) = 4"):
        token_logprobs(torch.zeros(3, 8), tokens, emitted, rows)
    with pytest.raises(ValueError, match="top_n=9; expected 0 to V = 8"):
        token_logprobs(torch.zeros(4, 8), tokens, emitted, rows, top_n=9)
    with pytest.raises(ValueError, match=r"num_emitted \[1\]"):
        token_logprobs(torch.zeros(4, 8), tokens, emitted[:1], rows)
