"""Known pitfalls of sampling and verification, one test each.

Others are in test_philox (noise), test_distribution (joint distributions), test_sampling_gpu (large offsets, graphs),
test_penalty_pitfalls and runtime/test_compiles_without_gpu (recompilation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from support import sampling_oracle as oracle
from support.chi_squared import p_value
from support.no_sync import NoSync
from support.sampling_cases import (
    BACKENDS,
    HEAVY,
    INTERPRETER,
    Backend,
    emitted,
    on_backends,
    random_round,
    run,
    same_rows,
    sampling,
    to,
)
from torch import Tensor

from specpipe_kernels import METHODS, Purpose, RejectionOutput, SamplingTensors, rejection_sample, sample
from specpipe_kernels.reference.sampling.rejection_sample import _log_residual
from specpipe_kernels.sampling.device import logit_rows as triton_rows
from specpipe_kernels.sampling.verification import distributions as triton_sides

V = 16
# Of tens of thousands of requests, too many for the interpreter.
QUICK = [BACKENDS[0], BACKENDS[2]]


def one_draft(
    backend: Backend, p: Tensor, q: Tensor | None, drafts: Tensor, s: SamplingTensors, **kwargs: Any
) -> RejectionOutput:
    """Rounds of K = 1 that share the logits p [2, V] and q [V]."""
    rows = len(drafts)
    out: RejectionOutput = run(
        backend,
        rejection_sample,
        p.expand(rows, *p.shape).reshape(-1, p.shape[1]),
        drafts[:, None],
        torch.ones(rows, dtype=torch.int32),
        torch.full((rows,), 9),
        s,
        draft_logits=None if q is None else q.expand(rows, 1, len(q)),
        **kwargs,
    )
    return out


def drawn_drafts(backend: Backend, q: Tensor, s: SamplingTensors) -> Tensor:
    rows = len(s.seed)
    at = torch.full((rows,), 9)
    tokens: Tensor = run(backend, sample, q.expand(rows, len(q)), s, at, purpose=Purpose.DRAFT, index=0).tokens
    return tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_p_and_q_accept_everything(backend: Backend) -> None:
    """In fp32 log space log u vanishes beside a large |log q|, and these drafts would be rejected.

    The seeds are the ones below 2**24 whose u at position 9 is above 1 - 2**-21.
    """
    seeds = [412168, 2912814, 7141523, 10517678]
    logits = torch.linspace(0, -80, V)
    rows = [oracle.Row(seed=s) for s in seeds]
    for token in (V - 1,) if backend == INTERPRETER else (V - 1, V // 2, 0):
        out = one_draft(backend, torch.stack([logits] * 2), logits, torch.full((4,), token), sampling(rows))
        assert out.num_accepted.tolist() == [1] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_residual_draws_p(backend: Backend) -> None:
    logits = torch.full((V,), -torch.inf)
    logits[[3, 8]] = torch.tensor([0.0, 1.0])
    rows = 6 if backend == INTERPRETER else 5000
    out = one_draft(
        backend, torch.stack([logits, logits]), logits, torch.full((rows,), 3), same_rows(rows),
        method="synthetic", synthetic_rates=torch.zeros(1),
    )  # fmt: skip
    assert out.num_accepted.tolist() == [0] * rows
    assert set(out.tokens[:, 0].tolist()) == {3, 8}
    if rows > 1000:
        assert p_value(out.tokens[:, 0], logits.softmax(-1)) > 1e-4


@pytest.mark.parametrize("backend", QUICK)
@pytest.mark.parametrize("method", ["standard", "block"])
def test_recovered_tokens_do_not_depend_on_the_rejected_draft(backend: Backend, method: str) -> None:
    """They would depend on it if the draft's noise, or the u of the acceptance, were used again."""
    g = torch.Generator().manual_seed(2)
    p = torch.randn(2, V, generator=g) * 1.2
    q = -0.4 * p[0] + torch.randn(V, generator=g) * 0.6
    s = same_rows(40_000)
    drafts = drawn_drafts(backend, q, s)
    out = one_draft(backend, p, q, drafts, s, method=method)
    rejected = out.num_accepted == 0
    pq = p[0].double().softmax(-1), q.double().softmax(-1)
    residual = (pq[0] - pq[1]).clamp(min=0)
    falls = (pq[1] - pq[0]).clamp(min=0)
    joint = falls[:, None] * residual
    assert p_value(drafts[rejected] * V + out.tokens[rejected, 0], joint) > 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_probability_0_are_never_accepted(backend: Backend) -> None:
    p = torch.zeros(2, V)
    p[:, 8:] = -torch.inf
    rows = 3 if backend == INTERPRETER else 2000
    drafts = 8 + torch.arange(rows) % 8
    for q in (None, torch.zeros(V)):
        out = one_draft(backend, p, q, drafts, same_rows(rows))
        assert out.num_accepted.tolist() == [0] * rows
        assert int(out.tokens[:, 0].max()) < 8


@triton.jit
def _log_residual_kernel(log_p, log_q, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    log2_e = 1.4426950408889634
    log2 = triton_sides.log2_residual(tl.load(log_p + i) * log2_e, tl.load(log_q + i) * log2_e)
    tl.store(out + i, log2 / log2_e)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_residual_of_nearly_equal_p_and_q_keeps_its_precision(backend: Backend) -> None:
    """1 - exp(d) would be off by some per cent at d = -1e-6, and 0 at -1e-8."""
    d = -torch.cat([torch.logspace(-9, 1.5, 59), torch.tensor([0.24999, 0.25, 0.25001, 60.0, torch.inf])])
    log_p = torch.full_like(d, -0.0)
    if backend.name == "reference":
        found = _log_residual(log_p, d)
    else:
        found = torch.zeros(64, device=backend.device)
        with np.errstate(all="ignore"):
            _log_residual_kernel[(1,)](to(log_p, backend.device), to(d, backend.device), found, BLOCK=64)
    torch.testing.assert_close(found.cpu().double(), (-torch.expm1(d.double())).log(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_draw_from_a_small_residual_equals_the_oracle(backend: Backend) -> None:
    """p - q is up to 5e-4 of p here: what log-space rounds off is a few draws in a thousand, and no more.

    log p, log q and both log-sum-exps are near 3, so each is rounded by up to 2^-23, and the sums of the latter are off
    by 2^-22 where exponentials are approximated: 8 * 2^-23 together, in units of p, for each weight p - q. Argmaxes of
    weights of total variation t with the same Gumbel noise differ with probability 2 t / (1 + t) at most.
    """
    g = torch.Generator().manual_seed(6)
    q = torch.randn(V, generator=g)
    p = (q + 1e-3 * torch.arange(V) / V).expand(2, V)
    rows = 3 if backend == INTERPRETER else 2000
    s = same_rows(rows, seed=6)
    out = one_draft(backend, p, q, torch.zeros(rows, dtype=torch.int64), s,
                    method="synthetic", synthetic_rates=torch.zeros(1))  # fmt: skip
    pq = p[0].double().softmax(-1), q.double().softmax(-1)
    residual = (pq[0] - pq[1]).clamp(min=0).numpy()
    expected = [oracle.draw_keyed(residual, int(seed), 9, 0, oracle.RECOVERED) for seed in s.seed]
    differ = sum(a != b for a, b in zip(out.tokens[:, 0].tolist(), expected, strict=True))
    variation = 8 * 2.0**-23 * float(pq[0][residual > 0].sum()) / residual.sum()
    most = rows * 2 * variation / (1 + variation)
    assert differ <= most + 4 * most**0.5


@pytest.mark.parametrize("backend", QUICK)
def test_rare_tokens_are_drawn_at_their_probability(backend: Backend) -> None:
    logits = torch.zeros(2048)
    logits[1:] = -11.0
    rows = 4000
    at = torch.arange(rows)
    tokens = run(backend, sample, logits.expand(rows, 2048), same_rows(rows), at, purpose=Purpose.BONUS).tokens
    mean = rows * (1 - float(logits.double().softmax(-1)[0]))
    assert abs(int((tokens > 0).sum()) - mean) < 5 * mean**0.5


@on_backends(dtype=[torch.bfloat16, torch.float16])
def test_half_precision_is_widened_not_rounded_again(backend: Backend, dtype: torch.dtype) -> None:
    """q comes from the logits that were stored, so sampling must see exactly these."""
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(8)).mul_(4).to(dtype)
    s, at = same_rows(6, temperature=0.7), torch.arange(6)
    narrow = run(backend, sample, logits, s, at, purpose=Purpose.DRAFT)
    wide = run(backend, sample, logits.float(), s, at, purpose=Purpose.DRAFT)
    assert torch.equal(narrow.tokens, wide.tokens) and torch.equal(narrow.lse, wide.lse)


@on_backends(vocab=[100, 4099])
def test_padded_lanes_never_win(backend: Backend, vocab: int) -> None:
    """All real logits are far below 0, which a zero in a padded lane would beat."""
    logits = torch.full((2, vocab), -1e4)
    rows = [oracle.Row(seed=1), oracle.Row(temperature=0.0)]
    out = run(backend, sample, logits, sampling(rows), torch.zeros(2).long(), purpose=Purpose.BONUS)
    assert int(out.tokens.max()) < vocab and int(out.tokens.min()) >= 0
    assert float(out.lse[0]) == pytest.approx(-1e4 + float(torch.tensor(vocab).log()), abs=2e-3)
    verified = one_draft(backend, logits, logits[0], torch.tensor([5]), sampling(rows[:1]))
    assert verified.num_accepted.tolist() == [1] and int(verified.tokens.max()) < vocab


@on_backends(method=METHODS)
def test_invalid_rows_emit_nothing(backend: Backend, method: str) -> None:
    """Other rows are unchanged. The status of NaN and +inf is 1, of all -inf 2."""
    case = random_round(vocab=40, draft_vocab=None, k=1, rows=6, method=method, truncated=False, seed=11)
    case = case.with_(draft_tokens=torch.where(case.draft_tokens < 0, 0, case.draft_tokens))
    clean = case.verify(backend, truncated=False)
    logits = case.target_logits.clone()
    logits[2, 7] = torch.nan
    logits[4, 39] = torch.inf
    logits[6] = -torch.inf
    logits[8, 3] = -torch.inf
    out = case.with_(target_logits=logits).verify(backend, truncated=False)
    assert out.status.tolist() == [0, 1, 1, 2, 0, 0]
    assert out.tokens[1:4].tolist() == [[-1, -1]] * 3
    assert out.num_emitted[1:4].tolist() == out.num_accepted[1:4].tolist() == [0, 0, 0]
    for row in (0, 5):
        assert out.tokens[row].tolist() == clean.tokens[row].tolist()


@on_backends(method=["standard", "block", "synthetic"])
def test_invalid_draft_row_is_reported(backend: Backend, method: str) -> None:
    case = random_round(vocab=40, draft_vocab=40, k=1, rows=3, method=method, truncated=False, seed=12)
    rows = [oracle.Row(seed=1), oracle.Row(seed=2), oracle.Row(temperature=0.0)]
    assert case.draft_logits is not None and case.draft_rows is not None
    q = case.draft_logits.clone()
    q[case.draft_rows[1:], 0, 0] = torch.nan
    out = case.with_(draft_logits=q, rows=rows).verify(backend, truncated=False)
    assert out.status.tolist() == [0, 1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_positions_beyond_a_rejection_are_ignored(backend: Backend) -> None:
    p = torch.zeros(2, V)
    p[0, 3] = 50.0
    p[1] = torch.nan
    out = one_draft(backend, p, None, torch.tensor([5]), same_rows(1))
    assert out.status.tolist() == [0] and out.tokens.tolist() == [[3, -1]]


@on_backends(method=METHODS)
def test_placeholders_and_rows_without_drafts(backend: Backend, method: str) -> None:
    """No draft is accepted from a placeholder on; the token drawn there is that of a shorter round."""
    case = random_round(vocab=40, draft_vocab=40, k=3, rows=4, method=method, truncated=False, seed=13)
    usable = case.draft_tokens.clamp(min=0)
    holes = usable.clone()
    holes[0, 0] = holes[1, 1] = holes[2, 2] = -1
    holes[3] = -1
    cut = case.with_(draft_tokens=usable, num_draft_tokens=torch.tensor([0, 1, 2, 0], dtype=torch.int32))
    with_holes = case.with_(draft_tokens=holes).verify(backend, truncated=False)
    shorter = cut.verify(backend, truncated=False)
    assert all(torch.equal(a, b) for a, b in zip(with_holes[:4], shorter[:4], strict=True))
    assert (with_holes.num_accepted <= torch.tensor([0, 1, 2, 0])).all()
    assert with_holes.num_emitted.tolist() == (with_holes.num_accepted + 1).tolist()


@pytest.mark.parametrize("backend", HEAVY)
def test_greedy_is_a_temperature_of_exactly_0(backend: Backend) -> None:
    logits = torch.full((16, 8), -1.0)
    logits[:, [2, 5]] = 1.0
    s = same_rows(16, temperature=1e-6)
    out = run(backend, sample, logits, s, torch.arange(16), purpose=Purpose.BONUS)
    assert set(out.tokens.tolist()) == {2, 5}
    greedy = run(
        backend, sample, logits, s._replace(temperature=torch.zeros(16)), torch.arange(16), purpose=Purpose.BONUS
    )
    assert set(greedy.tokens.tolist()) == {2}


@pytest.mark.parametrize("backend", QUICK)
@pytest.mark.parametrize("draft_vocab", [12, 20])
def test_every_token_of_the_target_stays_reachable(backend: Backend, draft_vocab: int) -> None:
    g = torch.Generator().manual_seed(14)
    p = torch.randn(2, V, generator=g)
    q = torch.randn(draft_vocab, generator=g)
    s = same_rows(30_000)
    drafts = drawn_drafts(backend, q, s)
    out = one_draft(backend, p, q, drafts, s)
    assert p_value(out.tokens[:, 0], p[0].double().softmax(-1)) > 1e-4
    assert int(out.tokens.max()) < V


@pytest.mark.parametrize("backend", HEAVY)
def test_draft_rows_select_q_of_each_request(backend: Backend) -> None:
    """Draft logits in other rows, selected by draft_rows, give the same result."""
    case = random_round(vocab=30, draft_vocab=30, k=2, rows=3, truncated=False, seed=15)
    assert case.draft_logits is not None and case.draft_rows is not None
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = case.with_(draft_logits=case.draft_logits[order], draft_rows=order.argsort()[case.draft_rows])
    assert emitted(moved.verify(backend, truncated=False)) == emitted(case.verify(backend, truncated=False))
    in_order = case.with_(draft_logits=case.draft_logits[case.draft_rows], draft_rows=None)
    assert emitted(in_order.verify(backend, truncated=False)) == emitted(case.verify(backend, truncated=False))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rejection_sample_never_synchronises_with_the_host(method: str, temperature: float) -> None:
    for ragged in (False, True):
        case = random_round(vocab=30, draft_vocab=25, k=2, rows=4, method=method, ragged=ragged, seed=16)
        rows = [oracle.Row(temperature=temperature, top_k=4, top_p=0.9, min_p=0.01)] * 4
        s, rates = sampling(rows, all_greedy=temperature == 0), case.synthetic_rates
        with NoSync():
            rejection_sample(
                case.target_logits, case.draft_tokens, case.num_draft_tokens, case.positions, s,
                draft_logits=case.draft_logits, draft_rows=case.draft_rows, cu_rows=case.cu_rows,
                method=method, synthetic_rates=rates,
            )  # fmt: skip
            sample(case.target_logits[:4], s, case.positions, purpose=Purpose.DRAFT)


@pytest.mark.parametrize("backend", HEAVY)
def test_seeds_are_read_at_every_call(backend: Backend) -> None:
    s, at = same_rows(12), torch.zeros(12).long()
    first = run(backend, sample, torch.zeros(12, 64), s, at, purpose=Purpose.DRAFT).tokens
    s.seed.add_(1)
    assert not torch.equal(run(backend, sample, torch.zeros(12, 64), s, at, purpose=Purpose.DRAFT).tokens, first)


@on_backends(method=METHODS)
def test_arguments_are_not_changed(backend: Backend, method: str) -> None:
    case = random_round(vocab=30, draft_vocab=30, k=2, rows=3, method=method, truncated=False, seed=20)
    assert case.draft_logits is not None
    before = case.target_logits.clone(), case.draft_logits.clone(), case.draft_tokens.clone()
    case.verify(backend, truncated=False)
    for now, then in zip((case.target_logits, case.draft_logits, case.draft_tokens), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_synthetic_rate_of_0_ends_the_round(backend: Backend) -> None:
    case = random_round(vocab=30, draft_vocab=None, k=3, rows=6, method="synthetic", truncated=False, seed=22)
    case = case.with_(draft_tokens=case.draft_tokens.clamp(min=0), synthetic_rates=torch.tensor([1.0, 0.0, 0.0]))
    out = case.verify(backend, truncated=False)
    assert out.num_accepted.tolist() == [1] * 6 and out.status.tolist() == [0] * 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_take_the_lowest_index_in_verification(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tile and across tiles."""
    monkeypatch.setattr(triton_rows, "MAX_TILE", 32)
    p = torch.zeros(2, 100)
    p[:, [40, 70]] = 2.0
    s = sampling([oracle.Row(temperature=0.0)] * 2, all_greedy=True)
    out = one_draft(backend, p, None, torch.tensor([70, 40]), s)
    assert out.tokens.tolist() == [[40, -1], [40, 40]]
