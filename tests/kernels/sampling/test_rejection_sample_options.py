"""Options of `rejection_sample`: saved log-sum-exps of the drafts, and counters of all rounds."""

from __future__ import annotations

import pytest
import torch
from support.sampling_cases import BACKENDS, HEAVY, Backend, on_backends, random_round, run, sampling, to
from torch import Tensor

from specpipe_kernels import METHODS, SamplingTensors, rejection_sample
from specpipe_kernels.sampling import rejection_sample as triton_module
from specpipe_kernels.sampling.device import logit_rows as triton_rows


def logits_lse(logits: Tensor, s: SamplingTensors, owners: Tensor) -> Tensor:
    """Returns log-sum-exps [D, K] of untruncated draft logits."""
    temperature = torch.ones(logits.shape[0])
    temperature[owners] = torch.where(s.temperature > 0, s.temperature, 1.0)
    return (logits.double() / temperature[:, None, None]).logsumexp(-1).float()


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize(
    "method", ["block", *(pytest.param(method, marks=pytest.mark.slow) for method in ("standard", "synthetic"))]
)
def test_saved_log_sum_exps_change_nothing(backend: Backend, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    r = random_round(vocab=100, draft_vocab=90, k=3, rows=5, method=method, truncated=False, ragged=True, seed=11)
    s = sampling(r.rows, truncated=False)
    assert r.draft_logits is not None and r.draft_rows is not None
    lse = logits_lse(r.draft_logits, s, r.draft_rows)
    given = run(backend, rejection_sample, r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions, s,
                draft_logits=r.draft_logits, draft_rows=r.draft_rows, draft_lse=lse, cu_rows=r.cu_rows, method=method,
                synthetic_rates=r.synthetic_rates)  # fmt: skip
    computed = r.verify(backend, truncated=False)
    assert all(torch.equal(a, b) for a, b in zip(given[:4], computed[:4], strict=True))


@on_backends(bad=[float("nan"), float("inf"), float("-inf")])
def test_saved_log_sum_exp_reports_an_invalid_draft_row(backend: Backend, bad: float) -> None:
    r = random_round(vocab=16, draft_vocab=16, k=1, rows=1, truncated=False)
    s = sampling(r.rows)._replace(temperature=torch.ones(1))
    out = run(backend, rejection_sample, r.target_logits, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1).int(),
              r.positions, s, draft_logits=torch.zeros(1, 1, 16), draft_lse=torch.full((1, 1), bad))  # fmt: skip
    assert out.status.tolist() == [2 if bad < 0 else 1] and out.num_emitted.tolist() == [0]


@on_backends(method=METHODS, one_hot=[False, True])
def test_counts_add_up_by_position(backend: Backend, method: str, one_hot: bool) -> None:
    k, rows = 3, 5
    r = random_round(vocab=40, draft_vocab=None if one_hot else 40, k=k, rows=rows, method=method, truncated=False)
    target = r.target_logits.clone()
    target[: k + 1, 0] = torch.nan  # an invalid request counts nowhere
    r = r.with_(target_logits=target)
    counts = to(torch.ones(4, k + 1, dtype=torch.int64), backend.device)
    out = run(backend, rejection_sample, target, r.draft_tokens, r.num_draft_tokens, r.positions,
              sampling(r.rows, truncated=False), draft_logits=r.draft_logits, draft_rows=r.draft_rows,
              cu_rows=r.cu_rows, method=method, synthetic_rates=r.synthetic_rates, counts=counts)  # fmt: skip
    expected = torch.ones(4, k + 1, dtype=torch.int64)
    for row in range(rows):
        if out.status[row]:
            continue
        drafts, accepted = len(r.drafts_of(row)), int(out.num_accepted[row])
        expected[0, : min(accepted + 1, drafts)] += 1
        expected[1, :accepted] += 1
        expected[2 if accepted < drafts else 3, accepted] += 1
    assert torch.equal(counts.cpu(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_decoding_counts_bonus_tokens(backend: Backend) -> None:
    r = random_round(vocab=16, draft_vocab=None, k=0, rows=3, truncated=False)
    counts = to(torch.zeros(4, 1, dtype=torch.int64), backend.device)
    run(backend, rejection_sample, r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions,
        sampling(r.rows, truncated=False), counts=counts)  # fmt: skip
    assert counts.flatten().tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("one_hot", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_staged_scans_give_the_same_round(backend: Backend, one_hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random_round(
        vocab=50, draft_vocab=None if one_hot else 50, k=3, rows=3, method="invariant", truncated=False, ragged=True
    )
    at_once = r.verify(backend)
    monkeypatch.setattr(triton_module, "STAGED_FROM", 0)
    assert all(torch.equal(a, b) for a, b in zip(r.verify(backend)[:4], at_once[:4], strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_rising_by_thousands_keep_their_mass(backend: Backend) -> None:
    """The first tile's largest logit is the reference of the sum; far larger logits later must not overflow it."""
    logits = torch.zeros(2, 5000)
    logits[:, 4500:4502] = 4000.0
    s = sampling([])._replace(
        temperature=torch.ones(1), top_k=torch.zeros(1).int(), top_p=torch.ones(1), min_p=torch.zeros(1),
        seed=torch.zeros(1).long(), truncated=False,
    )  # fmt: skip
    drafts = torch.tensor([[4500]])
    q = logits[None, :1].clone()
    out = run(backend, rejection_sample, logits, drafts, torch.ones(1).int(), torch.zeros(1).long(), s, draft_logits=q)
    assert out.num_accepted.tolist() == [1] and int(out.tokens[0, 1]) in (4500, 4501)


def test_options_that_do_not_fit_are_named() -> None:
    r = random_round(vocab=16, draft_vocab=16, k=2, rows=2, truncated=False)
    call = (r.target_logits, r.draft_tokens, r.num_draft_tokens, r.positions, sampling(r.rows))
    with pytest.raises(ValueError, match="draft_lse"):
        rejection_sample(*call, draft_lse=torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"counts \[4, 2\]"):
        rejection_sample(*call, counts=torch.zeros(4, 2, dtype=torch.int64))
