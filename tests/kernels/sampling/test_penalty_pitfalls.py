"""Pitfalls of penalties: log-probabilities under the residual, and penalties on p or q only."""

from __future__ import annotations

import pytest
import torch
from support.chi_squared import p_value
from support.penalty_cases import History, penalised
from support.sampling_cases import BACKENDS, Backend, on_backends, run, same_rows
from torch import Tensor

from specpipe_kernels import Penalties, Purpose, RejectionOutput, rejection_sample, sample, token_logprobs

V, K = 16, 2
PROMPT, OUTPUT = [3, 1, 4, 1, 5], [9, 2, 9]
P = torch.linspace(1.5, -1.5, V)
Q = P.flip(0) * 0.6
PENALTIES = (1.6, 1.2, 1.0)


def history(rows: int) -> History:
    """Requests that all read one slot."""
    tokens = torch.tensor([PROMPT + OUTPUT + [0] * (K + 1)])
    ones = torch.ones(rows)
    return History(
        tokens=tokens,
        prompts=[PROMPT] * rows,
        outputs=[OUTPUT] * rows,
        slots=torch.zeros(rows, dtype=torch.int64),
        lengths=torch.full((rows,), len(PROMPT + OUTPUT)),
        penalties=Penalties(*(ones * value for value in PENALTIES)),
    )


def joint(one: History) -> Tensor:
    """Exact probabilities [V, V] of the next two tokens."""
    first = one.expected(0, P, []).softmax(-1)
    return torch.stack([first[x] * one.expected(0, P, [x]).softmax(-1) for x in range(V)])


def two_tokens(backend: Backend, method: str, one_hot: bool, rows: int, counted: bool) -> Tensor:
    """[rows]: x1 * V + x2 of a round, completed by plain decoding. counted: whether p knows the round's drafts."""
    s, at, h = same_rows(rows, seed=21), torch.full((rows,), 40), history(rows)
    shared = method == "invariant"
    drafts, q = torch.full((rows, K), -1), torch.empty(rows, K, V)
    for i in range(K):
        q[:, i] = penalised(backend, Q.repeat(rows, 1), h, drafts, first=i)
        purpose = Purpose.INVARIANT if shared else Purpose.DRAFT
        drawn = run(backend, sample, q[:, i].clone(), s, at + i, purpose=purpose, index=i).tokens
        drafts[:, i] = torch.arange(rows) % 3 if one_hot else drawn
    known = drafts if counted else torch.full_like(drafts, -1)
    p = penalised(backend, P.repeat(rows * (K + 1), 1), h, known)
    out: RejectionOutput = run(
        backend, rejection_sample, p, drafts, torch.full((rows,), K).int(), at, s,
        draft_logits=None if one_hot else q, method=method,
    )  # fmt: skip
    first = out.tokens[:, :1]
    row = penalised(backend, P.repeat(rows, 1), h, first, first=1)
    purpose = Purpose.INVARIANT if shared else Purpose.BONUS
    later = run(backend, sample, row, s, at + 1, purpose=purpose, index=0).tokens
    second = torch.where(out.num_emitted > 1, out.tokens[:, 1], later)
    return first[:, 0] * V + second


@pytest.mark.parametrize("backend", [BACKENDS[0], BACKENDS[2]])
@pytest.mark.parametrize("one_hot", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method", ["standard", *(pytest.param(method, marks=pytest.mark.slow) for method in ("block", "invariant"))]
)
def test_penalties_of_a_row_count_the_drafts_before_it(backend: Backend, method: str, one_hot: bool) -> None:
    rows = 10_000
    expected = joint(history(1))
    assert p_value(two_tokens(backend, method, one_hot, rows, counted=True), expected) > 1e-4
    assert p_value(two_tokens(backend, method, one_hot, rows, counted=False), expected) < 1e-9, "it must be seen"


@on_backends(0, one_hot=[False, True])
def test_logprobs_are_those_of_p_not_of_the_residual(backend: Backend, one_hot: bool) -> None:
    rows = 16
    s = same_rows(rows, temperature=0.7)
    p, q = P.repeat(rows * 2, 1), Q.repeat(rows, 1)[:, None]
    drafts = torch.full((rows, 1), V - 1)  # likely under q, not under p
    out = run(
        backend, rejection_sample, p, drafts, torch.ones(rows).int(), torch.full((rows,), 7), s,
        draft_logits=None if one_hot else q,
    )  # fmt: skip
    logprobs = run(backend, token_logprobs, p, out.tokens, out.num_emitted, s).logprobs
    rejected = out.num_accepted == 0
    assert rejected.sum() > rows // 2
    expected = (P.double() / 0.7).log_softmax(-1)
    torch.testing.assert_close(logprobs[:, 0].double(), expected[out.tokens[:, 0]], rtol=0, atol=1e-5)
    assert logprobs[rejected, 1].isnan().all()
