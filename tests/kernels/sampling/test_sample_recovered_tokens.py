"""`sample_recovered_tokens`, reference and Triton, against fp64 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.chi_squared import p_value
from support.sampling_cases import BACKENDS, Backend, run
from torch import Tensor

from specpipe_kernels import sample_recovered_tokens


def random_probs(rows: int, vocab: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab, generator=g) * 2).softmax(-1)


def residuals(p: Tensor, q: Tensor | None, ids: Tensor | None) -> np.ndarray:
    p64 = p.double().numpy()
    if q is not None:
        return np.maximum(p64 - q.double().numpy(), 0)
    p64 = p64.copy()
    p64[np.arange(len(p)), ids] = 0
    return p64


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("vocab", [16, 100, 8193])
def test_given_noise(backend: Backend, one_hot: bool, vocab: int) -> None:
    """Rows of one request share its noise."""
    p, q = random_probs(5, vocab, 1), None if one_hot else random_probs(5, vocab, 2)
    ids = torch.arange(5)
    inverse = -1 / torch.rand(2, vocab, generator=torch.Generator().manual_seed(3)).log()
    rows = torch.tensor([0, 1, 1, 0, 0])
    out = run(backend, sample_recovered_tokens, p, q, ids, inverse_noise=inverse, noise_rows=rows)
    expected = (residuals(p, q, ids) * inverse[rows].double().numpy()).argmax(-1)
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("one_hot", [True, False])
def test_keyed_noise_is_the_recovered_stream(backend: Backend, one_hot: bool) -> None:
    p, q = random_probs(4, 100, 4), None if one_hot else random_probs(4, 100, 5)
    seeds, positions, indices = torch.arange(4) + 2**40, torch.arange(4) * 9, torch.tensor([0, 1, 2, 0])
    out = run(
        backend, sample_recovered_tokens, p, q, torch.zeros(4).long(), seeds=seeds, positions=positions, indices=indices
    )
    keys = zip(seeds.tolist(), positions.tolist(), indices.tolist(), strict=True)
    left = residuals(p, q, torch.zeros(4).long())
    drawn = [oracle.draw_keyed(r, *key, oracle.RECOVERED) for r, key in zip(left, keys, strict=True)]
    assert out.tolist() == drawn


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_residual_draws_p_and_invalid_rows_draw_nothing(backend: Backend) -> None:
    p = random_probs(4, 40, 6)
    q = p.clone()
    p[1, 3] = torch.nan
    q[2, 5] = torch.nan
    p[3] = q[3] = 0
    inverse = torch.ones(4, 40)
    out = run(backend, sample_recovered_tokens, p, q, inverse_noise=inverse)
    assert out.tolist() == [int(p[0].argmax()), -1, -1, -1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_rows(backend: Backend) -> None:
    p, q = random_probs(3, 107, 7)[:, :100], random_probs(6, 100, 8)[::2]
    inverse = torch.ones(3, 100)
    out = run(backend, sample_recovered_tokens, p, q, inverse_noise=inverse)
    assert out.tolist() == residuals(p, q, None).argmax(-1).tolist()


def test_is_distributed_as_the_residual() -> None:
    p, q, rows = random_probs(1, 16, 9), random_probs(1, 16, 10), 30_000
    out = sample_recovered_tokens(
        p.expand(rows, 16), q.expand(rows, 16), seeds=torch.arange(rows), positions=torch.zeros(rows).long()
    )
    assert p_value(out, (p - q).clamp(min=0)[0]) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_probs": torch.zeros(16), "draft_token_ids": torch.zeros(1)}, r"expected \[N, V\]"),
        ({}, "expected one of them as q"),
        ({"draft_probs": torch.zeros(2, 15)}, r"expected \[2, 16\]"),
        ({"draft_probs": torch.zeros(2, 16)}, "either inverse_noise or both"),
        ({"draft_token_ids": torch.zeros(3).long(), "inverse_noise": torch.ones(2, 16)}, r"one entry per row: \[2\]"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_recovered_tokens(**{"target_probs": torch.zeros(2, 16), **arguments})
