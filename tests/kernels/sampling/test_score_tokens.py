"""`score_tokens`, reference and Triton, against fp64: split rows, ties, huge logits, invalid rows."""

from __future__ import annotations

import pytest
import torch
from support.sampling_cases import BACKENDS, Backend, on_backends, run

from specpipe_kernels import score_tokens
from specpipe_kernels.sampling.device import logit_rows as triton_rows


@on_backends(quick=2, dtype=[torch.float32, torch.bfloat16], vocab=[61, 300])
def test_equals_log_softmax_in_fp64(backend: Backend, dtype: torch.dtype, vocab: int, monkeypatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 64)  # rows of several tiles and programs
    g = torch.Generator().manual_seed(vocab)
    wide = (30 * torch.randn(7, vocab + 3, generator=g)).to(dtype)
    logits = wide[:, :vocab]  # rows apart by more than V, as of a head with padding
    tokens = torch.randint(0, vocab, (7,), generator=g)
    tokens[::2] = logits[::2].float().argmax(1)

    got = run(backend, score_tokens, logits, tokens)

    expected = logits.double().log_softmax(1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(got.logprobs.double(), expected, atol=3e-5, rtol=1e-6)
    assert got.is_greedy.tolist() == (logits.float().argmax(1) == tokens).tolist()
    assert got.is_greedy[::2].all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_lowest_id_of_equal_logits_is_greedy(backend: Backend, monkeypatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 16)
    logits = torch.full((3, 40), -1.0)
    logits[:, [5, 6, 38]] = 2.0
    assert run(backend, score_tokens, logits, torch.tensor([5, 6, 38])).is_greedy.tolist() == [True, False, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_and_invalid_rows(backend: Backend, monkeypatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 16)
    logits = torch.zeros(5, 40)
    logits[0, 30] = 1e4  # exp overflows relative to the first tile
    logits[1] = -torch.inf
    logits[1, 33] = -3.0
    logits[2, 7], logits[3, 39], logits[4] = torch.nan, torch.inf, -torch.inf
    got = run(backend, score_tokens, logits, torch.tensor([30, 33, 0, 39, 1]))
    assert got.logprobs[:2].tolist() == [0.0, 0.0] and got.is_greedy.tolist() == [True, True, False, False, False]
    assert got.logprobs[2:].isnan().all()
    unlikely = run(backend, score_tokens, logits[:2], torch.tensor([0, 0]))
    assert unlikely.logprobs.tolist() == [-1e4, -torch.inf]


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"tokens \[2\]; expected one for each row of logits: \[3\]"):
        score_tokens(torch.zeros(3, 8), torch.zeros(2, dtype=torch.int64))
    assert score_tokens(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64)).logprobs.shape == (0,)
