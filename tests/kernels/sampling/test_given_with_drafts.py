"""Optional inputs of verification: truncation bounds of the drafts, and the bonus token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.sampling_cases import (
    HEAVY,
    INTERPRETED,
    INTERPRETER,
    Backend,
    Round,
    emitted,
    on_backends,
    random_round,
    run,
    sampling,
    to,
)
from torch import Tensor

from specpipe_kernels import METHODS, Bounds, Purpose, RejectionOutput, rejection_sample, sample
from specpipe_kernels.sampling import rejection_sample as triton_module


def verify(backend: Backend, r: Round, *, truncated: bool = True, **given: Any) -> RejectionOutput:
    out: RejectionOutput = run(
        backend, rejection_sample, r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions,
        sampling(r.rows, truncated=truncated), draft_logits=r.draft_logits,
        draft_rows=r.draft_rows, cu_rows=r.cu_rows, method=r.method,
        synthetic_rates=r.synthetic_rates, **given,
    )  # fmt: skip
    return out


def draft_bounds(backend: Backend, r: Round) -> Bounds:
    """Returns the bounds that drafting returns, one call per position, with rows by slot."""
    assert r.draft_logits is not None and r.draft_rows is not None
    slots, k, _ = r.draft_logits.shape
    bounds = Bounds(torch.zeros(slots, k), torch.zeros(slots, k, dtype=torch.int32))
    for i in range(k):
        drawn = run(
            backend, sample, r.draft_logits[r.draft_rows, i], sampling(r.rows), r.positions + i,
            purpose=Purpose.DRAFT, index=i,
        )  # fmt: skip
        for kept, found in zip(bounds, drawn.bounds, strict=True):
            kept[r.draft_rows, i] = found
    return bounds


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("method", ["standard", "block", "synthetic"])
def test_bounds_of_the_drafts_change_nothing(backend: Backend, method: str) -> None:
    r = random_round(vocab=40, draft_vocab=36, k=2, rows=4, method=method, ragged=True, seed=21)
    given = verify(backend, r, draft_bounds=draft_bounds(backend, r))
    for a, b in zip(given[:4], verify(backend, r)[:4], strict=True):
        assert torch.equal(a, b)


@INTERPRETED
def test_given_draft_bounds_save_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    r = random_round(vocab=40, draft_vocab=36, k=1, rows=1, dtype=torch.bfloat16, seed=22)
    bounds = draft_bounds(INTERPRETER, r)
    found: list[int] = []
    own = triton_module.truncation_bounds

    def counting(rows: Any, s: Any) -> Any:
        found.append(rows.width)
        return own(rows, s)

    monkeypatch.setattr(triton_module, "truncation_bounds", counting)
    verify(INTERPRETER, r)
    assert found == [2, 1]
    verify(INTERPRETER, r, draft_bounds=bounds)
    assert found == [2, 1, 2]


@on_backends(2, method=METHODS, k=[2, 0])
def test_given_bonus_token_follows_accepted_drafts(backend: Backend, method: str, k: int) -> None:
    """The bonus row of logits is not read and may be invalid."""
    r = random_round(vocab=40, draft_vocab=40 if k else None, k=k, rows=5, method=method, truncated=False, seed=23)
    bonus = torch.arange(100, 105)
    target = r.target_logits.clone().view(5, k + 1, 40)
    invalid = target.clone()
    for row in range(5):
        invalid[row, len(r.drafts_of(row))] = torch.nan
    expected = []
    for row, (tokens, accepted) in enumerate(r.expected()):
        if accepted == len(r.drafts_of(row)):
            tokens[-1] = int(bonus[row])
        expected.append((tokens, accepted))
    ended = [accepted == len(r.drafts_of(row)) for row, (_, accepted) in enumerate(expected)]
    for logits in (target, invalid):
        counts = to(torch.zeros(4, k + 1, dtype=torch.int64), backend.device)
        r = r.with_(target_logits=logits.view(-1, 40))
        out = verify(backend, r, truncated=False, bonus_tokens=bonus, counts=counts)
        assert emitted(out) == expected and out.status.tolist() == [0] * 5
        assert counts[2:].sum(1).tolist() == [ended.count(False), ended.count(True)]


def wrong(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def test_arguments_that_do_not_fit_are_named() -> None:
    r = random_round(vocab=16, draft_vocab=16, k=2, rows=2)
    call = (r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions, sampling(r.rows))
    with pytest.raises(ValueError, match=r"draft_bounds\.logit \[2, 2\]"):
        rejection_sample(*call, draft_bounds=Bounds(torch.zeros(2, 2), wrong((2, 2))))
    with pytest.raises(ValueError, match=r"draft_bounds\.token \[4, 1\]"):
        rejection_sample(*call, draft_logits=r.draft_logits, draft_bounds=Bounds(torch.zeros(4, 2), wrong((4, 1))))
    with pytest.raises(ValueError, match=r"bonus_tokens \[3\]"):
        rejection_sample(*call, bonus_tokens=torch.zeros(3, dtype=torch.int64))
