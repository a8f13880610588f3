"""Truncation by top-k, top-p and min-p: reference and Triton against fp64 and transformers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.sampling_cases import BACKENDS, HEAVY, Backend, same_rows, sampling, to
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specpipe_kernels.reference.sampling.kept_logits import kept_logits
from specpipe_kernels.sampling.device import logit_rows as triton_rows
from specpipe_kernels.sampling.device.logit_rows import LogitRows
from specpipe_kernels.sampling.truncation import truncation_bounds as triton_module
from specpipe_kernels.sampling.truncation.truncation_bounds import truncation_bounds

FILTERS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.1},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.05, "temperature": 0.6},
    {"top_k": 1000, "top_p": 1e-6, "temperature": 1.7},
]


def kept(backend: Backend, logits: Tensor, rows: list[oracle.Row]) -> Tensor:
    """Returns [N, V] bool: the kept tokens."""
    if backend.name == "reference":
        return kept_logits(logits, sampling(rows)) > -torch.inf
    logits = to(logits, backend.device)
    n, vocab = logits.shape
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        bounds = truncation_bounds(
            LogitRows(logits, None, logits.stride(0), logits.stride(0), vocab, n, 1), to(sampling(rows), backend.device)
        )
    index = torch.arange(vocab, device=logits.device)
    above = logits.float() > bounds.logit[:, None]
    tied = (logits.float() == bounds.logit[:, None]) & (index <= bounds.token[:, None])
    return ((above | tied) & (logits > -torch.inf)).cpu()


def expected(logits: Tensor, rows: list[oracle.Row]) -> Tensor:
    pairs = zip(logits.double().numpy(), rows, strict=True)
    return torch.stack([torch.from_numpy(oracle.distribution(x, row) > 0) for x, row in pairs])


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("vocab", [16, 100, 1031])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_oracle(backend: Backend, vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 256)
    rows = [oracle.Row(**f) for f in FILTERS]
    g = torch.Generator().manual_seed(vocab)
    logits = torch.randn(len(rows), vocab, generator=g).mul_(3).to(dtype)
    assert torch.equal(kept(backend, logits, rows), expected(logits, rows))


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_filters_on_one_row(backend: Backend) -> None:
    rows = [oracle.Row(**FILTERS[5])]
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(8)).mul_(3)
    assert torch.equal(kept(backend, logits, rows), expected(logits, rows))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_are_kept_from_the_lowest_index(backend: Backend, dtype: torch.dtype) -> None:
    """top-k keeps exactly k, top-p the fewest that reach p; -0.0 ties with 0.0."""
    logits = torch.tensor([[1.0, 2.0, 0.0, 2.0, -0.0, 2.0, 0.0, 2.0, -1.0, 0.0]], dtype=dtype)
    for fields, ids in (
        ({"top_k": 3}, [1, 3, 5]),
        ({"top_k": 7}, [0, 1, 2, 3, 4, 5, 7]),
        ({"top_p": 0.4}, [1, 3]),
        ({"min_p": 0.9}, [1, 3, 5, 7]),
    ):
        assert kept(backend, logits, [oracle.Row(**fields)])[0].nonzero()[:, 0].tolist() == ids, fields


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_equal_logits(backend: Backend) -> None:
    """All logits are equal, as those of an untrained model."""
    rows = [oracle.Row(top_k=4), oracle.Row(top_p=0.5)]
    assert kept(backend, torch.zeros(2, 20), rows).sum(-1).tolist() == [4, 10]


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_of_minus_infinity_are_never_kept(backend: Backend) -> None:
    logits = torch.full((2, 16), -torch.inf)
    logits[:, [3, 9]] = torch.tensor([1.0, 2.0])
    rows = [oracle.Row(top_k=8), oracle.Row(top_p=0.999999)]
    assert kept(backend, logits, rows).nonzero()[:, 1].tolist() == [3, 9, 3, 9]


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("listed", [512, 64, 16], ids=["all listed", "too many of a part", "too many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_all_shapes(backend: Backend, dtype: torch.dtype, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaked, narrow, far from 0, in steps, padded with the lowest number, mostly forbidden, all alike but one."""
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    monkeypatch.setattr(triton_rows, "max_programs", lambda device: 32)
    monkeypatch.setattr(triton_module, "MAX_CANDIDATES", listed)
    monkeypatch.setattr(triton_module, "MIN_LIST_SIZE", 1)
    x = torch.randn(8, 200, generator=torch.Generator().manual_seed(3))
    x[0, 100:104] += 20
    x[1] = x[1] * 0.01 + 20
    x[2] = x[2] * 2 - 30
    x[3] = (x[3] * 2).round()
    x[4, -9:] = torch.finfo(dtype).min
    x[5, 6:] = -torch.inf
    x[6] = 0.0
    x[6, 77] = 0.5
    x[7] = x[7].abs().log() * 9
    fields = ({"top_k": 30, "top_p": 0.9}, {"top_p": 0.99, "temperature": 0.7}, {"top_k": 190, "temperature": 2.0})
    for filters in fields:
        rows = [oracle.Row(**filters)] * len(x)
        assert torch.equal(kept(backend, x.to(dtype), rows), expected(x.to(dtype), rows)), filters


@pytest.mark.parametrize("fields", FILTERS)
def test_reference_equals_transformers(fields: dict[str, float]) -> None:
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(1)).mul_(2)
    row = oracle.Row(**fields)
    scores = TemperatureLogitsWarper(float(row.temperature))(None, logits)
    if row.top_k:
        scores = TopKLogitsWarper(row.top_k)(None, scores)
    if row.top_p < 1:
        scores = TopPLogitsWarper(row.top_p)(None, scores)
    if row.min_p:
        scores = MinPLogitsWarper(row.min_p)(None, scores)
    ours = kept_logits(logits, same_rows(8, **fields))
    assert torch.equal(ours > -torch.inf, scores > -torch.inf)
    torch.testing.assert_close(ours.softmax(-1), scores.softmax(-1))
