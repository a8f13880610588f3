"""Emitted tokens are distributed as the target's own draws: marginals, joints, and joints over many rounds.

Drafts come from the engine's own stream, V is 16 and p and q are opposed: a wrong residual, a reused noise or a biased
acceptance cannot hide. Seeds are fixed, so a p-value is what it is: below 1e-4 in a few dozen tests means a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.chi_squared import p_value
from support.sampling_cases import same_rows
from torch import Tensor

from specpipe_kernels import Purpose, RejectionOutput, SamplingTensors, rejection_sample, sample

V, K = 16, 3
LEAST = 1e-4
EXACT = ("standard", "block", "invariant")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZES = [pytest.param(20_000, id="20k"), pytest.param(200_000, id="200k", marks=pytest.mark.slow)]


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Returns the device of the tensors: plain torch draws and verifies on a CPU, Triton on a GPU."""
    with torch.device(request.param) as chosen:
        yield chosen


def opposed(positions: int, seed: int = 0, vocab: int = V) -> tuple[Tensor, Tensor]:
    """Returns logits of p [positions, V] and q, which overlap although q prefers tokens that p does not."""
    g = torch.Generator("cpu").manual_seed(seed)
    p, other = (torch.randn(positions, vocab, generator=g, device="cpu") for _ in range(2))
    p, q = p * 1.2, -0.48 * p + other * 0.6
    return p.to(torch.get_default_device()), q.to(torch.get_default_device())


def probs(logits: Tensor, **fields: float) -> Tensor:
    row = oracle.Row(**fields)
    kept = [oracle.distribution(x.double().numpy(), row) for x in logits.cpu()]
    return torch.tensor(np.stack(kept))


def draft(q: Callable[[int, Tensor], Tensor], s: SamplingTensors, positions: Tensor, method: str, k: int) -> Tensor:
    """Returns drafts [R, k], drawn as an engine draws them; q returns the logits of draft i after earlier ones."""
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT
    drafts = torch.empty(len(positions), 0, dtype=torch.int64)
    for i in range(k):
        token = sample(q(i, drafts), s, positions + i, purpose=purpose, index=i).tokens
        drafts = torch.cat([drafts, token[:, None]], dim=1)
    return drafts


def one_round(
    p: Tensor, q: Tensor, s: SamplingTensors, *, method: str, one_hot: bool = False, counts: Tensor | None = None
) -> RejectionOutput:
    rows = len(s.seed)
    positions = torch.full((rows,), 17)
    drafts = draft(lambda i, _: q[i].expand(rows, V), s, positions, method, K)
    if one_hot:
        drafts = q.argmax(-1).expand(rows, K)
    return rejection_sample(
        p.expand(rows, K + 1, V).reshape(-1, V),
        drafts,
        torch.full((rows,), K) if counts is None else counts,
        positions,
        s,
        draft_logits=None if one_hot else q.expand(rows, K, V),
        method=method,
    )


def check_positions(out: RejectionOutput, p: Tensor, rows: Tensor | None = None) -> None:
    """Marginals given that a position is reached, and the joint of the first two tokens where both were emitted."""
    rows = torch.ones_like(out.num_emitted, dtype=torch.bool) if rows is None else rows
    for i in range(K + 1):
        reached = rows & (out.num_emitted > i)
        if int(reached.sum()) > 500:
            assert p_value(out.tokens[reached, i], p[i]) > LEAST, f"position {i}"
    both = rows & (out.num_emitted > 1)
    # Given that the first draft was accepted, the second token is still a draw from p.
    first, second = out.tokens[both, 0], out.tokens[both, 1]
    given = torch.bincount(first, minlength=V).double() / len(first)
    assert p_value(first * V + second, given[:, None] * p[1]) > LEAST


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7, "top_k": 12, "top_p": 0.95}], ids=["plain", "truncated"])
def test_every_position_is_a_draw_from_p(method: str, rows: int, fields: dict[str, float]) -> None:
    p, q = opposed(K + 1)
    out = one_round(p, q[:K], same_rows(rows, **fields), method=method)
    assert int((out.num_emitted > 1).sum()) > 1000
    check_positions(out, probs(p, **fields))


@pytest.mark.parametrize("method", EXACT)
def test_one_hot_proposals(method: str) -> None:
    p, _ = opposed(K + 1, seed=3)
    out = one_round(p, p[:K], same_rows(30_000), method=method, one_hot=True)
    check_positions(out, probs(p))


@pytest.mark.parametrize("method", EXACT)
def test_ragged_greedy_and_random_rows_in_one_launch(method: str) -> None:
    p, q = opposed(K + 1, seed=4)
    s = same_rows(20_000)
    greedy = torch.arange(20_000) % 4 == 1
    s = s._replace(temperature=torch.where(greedy, 0.0, s.temperature))
    out = one_round(p, q[:K], s, method=method, counts=torch.arange(20_000) % (K + 1))
    check_positions(out, probs(p), rows=~greedy)
    best = p.argmax(-1)
    for i in range(K + 1):
        assert (out.tokens[greedy & (out.num_emitted > i), i] == best[i]).all()


def test_block_accepts_at_least_as_many_as_standard() -> None:
    p, q = opposed(K + 1, seed=5)
    s = same_rows(20_000)
    mean = {m: float(one_round(p, q[:K], s, method=m).num_accepted.float().mean()) for m in ("standard", "block")}
    assert mean["block"] > mean["standard"] + 0.02


def test_standard_accepts_at_the_overlap_of_p_and_q() -> None:
    p, q = opposed(K + 1, seed=6)
    out = one_round(p, q[:K], same_rows(20_000), method="standard")
    overlap = torch.minimum(probs(p[:1]), probs(q[:1])).sum()
    assert float((out.num_accepted > 0).float().mean()) == pytest.approx(float(overlap), abs=0.015)


def test_invariant_acceptance_is_within_its_bound() -> None:
    """At least (1 - TV) / (1 + TV), at most 1 - TV: Daliri et al., arXiv 2408.07978."""
    p, q = opposed(K + 1, seed=6)
    accepted = float((one_round(p, q[:K], same_rows(20_000), method="invariant").num_accepted > 0).float().mean())
    distance = float(1 - torch.minimum(probs(p[:1]), probs(q[:1])).sum())
    assert (1 - distance) / (1 + distance) - 0.01 < accepted < 1 - distance + 0.01


def markov_run(p: Tensor, q: Tensor, s: SamplingTensors, *, length: int, k: int, method: str, ragged: bool) -> Tensor:
    """[R, length] tokens of the chain with transition logits p [V, V]; a round starts where the last one ended."""
    rows = len(s.seed)
    tokens = torch.zeros(rows, length + k + 1, dtype=torch.int64)
    filled = torch.ones(rows, dtype=torch.int64)  # token 0 starts every chain
    step = 0
    while int(filled.min()) < length:
        last = tokens.gather(1, filled[:, None] - 1)[:, 0]
        drafts = draft(lambda i, before, last=last: q[before[:, -1] if i else last], s, filled, method, k)
        seen = torch.cat([last[:, None], drafts], dim=1)
        counts = (torch.arange(rows) + step) % (k + 1) if ragged else torch.full((rows,), k)
        out = rejection_sample(
            p[seen].flatten(0, 1), drafts, counts, filled, s, draft_logits=q[seen[:, :k]], method=method
        )
        active = filled < length
        at = (filled[:, None] + torch.arange(k + 1)).clamp(max=length + k)
        keep = active[:, None] & (out.tokens >= 0)
        tokens.scatter_(1, at, torch.where(keep, out.tokens, tokens.gather(1, at)))
        filled += out.num_emitted * active
        step += 1
    return tokens[:, :length]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(
    "ragged", [pytest.param(False, id="k_fixed", marks=pytest.mark.slow), pytest.param(True, id="k_varies")]
)
def test_joint_distribution_over_many_rounds(method: str, rows: int, ragged: bool) -> None:
    """Four tokens of a chain of three states, jointly: block verification inspects positions that later rounds draw
    again, and a stream keyed by position alone would make the two draws agree."""
    p, q = opposed(3, seed=2, vocab=3)
    chain = markov_run(p, q, same_rows(rows, seed=8), length=7, k=K, method=method, ragged=ragged)
    transition = probs(p)
    state = transition[0]
    for start in (1, 2, 3):
        cells, joint = chain[:, start], state
        for i in range(1, 4):
            cells = cells * 3 + chain[:, start + i]
            joint = joint[..., None] * transition
        assert p_value(cells, joint) > LEAST
        state = state @ transition


@pytest.mark.parametrize("method", ["standard", "invariant"])
def test_rejection_sample_without_drafts_is_plain_decoding(method: str) -> None:
    p, _ = opposed(1)
    rows = 30_000
    none = torch.empty(rows, 0, dtype=torch.int64)
    at = torch.full((rows,), 3)
    out = rejection_sample(p.expand(rows, V), none, torch.zeros(rows), at, same_rows(rows), method=method)
    assert p_value(out.tokens[:, 0], probs(p)[0]) > LEAST
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.BONUS
    plain = sample(p.expand(rows, V), same_rows(rows), at, purpose=purpose)
    assert torch.equal(out.tokens[:, 0], plain.tokens)


def test_invariant_tokens_depend_neither_on_k_nor_on_the_draft() -> None:
    p = opposed(V, seed=7)[0]

    def chain(k: int, draft_seed: int) -> Tensor:
        q = opposed(V, seed=draft_seed)[1]
        return markov_run(p, q, same_rows(2000, seed=1), length=12, k=k, method="invariant", ragged=False)

    plain = chain(0, 7)
    for k, draft_seed in ((1, 7), (3, 7), (4, 99)):
        assert torch.equal(chain(k, draft_seed), plain)


def test_synthetic_rates_are_realised() -> None:
    p, q = opposed(K + 1)
    rates = torch.tensor([0.9, 0.5, 0.2])
    rows = 20_000
    s = same_rows(rows)
    s = s._replace(temperature=torch.where(torch.arange(rows) % 2 == 0, 0.0, s.temperature))
    at = torch.full((rows,), 5)
    drafts = draft(lambda i, _: q[i].expand(rows, V), s, at, "synthetic", K)
    out = rejection_sample(
        p.expand(rows, K + 1, V).reshape(-1, V), drafts, torch.full((rows,), K), at, s,
        draft_logits=q[:K].expand(rows, K, V), method="synthetic", synthetic_rates=rates,
    )  # fmt: skip
    for part in (out.num_accepted[::2], out.num_accepted[1::2]):
        realised = torch.stack([(part > i).float().mean() for i in range(K)])
        torch.testing.assert_close(realised, rates, atol=0.015, rtol=0)
