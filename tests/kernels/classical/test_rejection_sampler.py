"""`RejectionSampler`, the classical interface, on flat ragged rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import sampling_oracle as oracle
from support.chi_squared import p_value
from torch import Tensor

from specpipe_kernels import RejectionSampler

V = 16


def metadata(drafts: list[list[int]]) -> SimpleNamespace:
    counts = [len(d) for d in drafts]
    return SimpleNamespace(
        draft_token_ids=torch.tensor([t for d in drafts for t in d], dtype=torch.int32),
        num_draft_tokens=counts,
        cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32),
        max_spec_len=max(counts),
    )


def how(batch: int, **changes: Any) -> SimpleNamespace:
    fields = {"temperature": torch.ones(batch), "top_k": None, "top_p": None, "all_greedy": False, "generators": {}}
    return SimpleNamespace(**(fields | changes))


def logits_for(rows: list[int]) -> Tensor:
    """Returns rows of logits with the given argmax."""
    return torch.nn.functional.one_hot(torch.tensor(rows, dtype=torch.int64), V).float() * 9


@pytest.mark.parametrize("all_greedy", [True, False])
def test_greedy_rows(all_greedy: bool) -> None:
    """All accepted, rejected in the middle, no drafts, a placeholder."""
    drafts = [[1, 2, 3], [4, 5], [], [-1, 6]]
    logits = logits_for([1, 2, 3, 4, 9, 7, 6])
    s = how(4, temperature=torch.zeros(4), all_greedy=all_greedy)
    bonus = torch.tensor([[10], [11], [12], [13]], dtype=torch.int32)
    out = RejectionSampler()(metadata(drafts), None, logits, bonus, s)
    assert out.dtype == torch.int32
    assert out.tolist() == [[1, 2, 3, 10], [4, 9, -1, -1], [12, -1, -1, -1], [7, -1, -1, -1]]
    assert RejectionSampler.parse_output(out, 12) == [[1, 2, 3, 10], [4, 9], [], [7]]


def test_negative_temperatures_are_greedy() -> None:
    """-1 marks greedy requests in the interface that this one follows."""
    logits = torch.tensor([[2.0, 1.0, 0.0, 0.0]]).repeat(200, 1)
    s = how(200, temperature=torch.full((200,), -1.0))
    out = RejectionSampler()(metadata([[0]] * 200), None, logits, torch.full((200, 1), 3), s)
    assert out.tolist() == [[0, 3]] * 200


def test_bonus_tokens_belong_to_requests() -> None:
    logits = logits_for([1, 2])
    for bonus in (torch.tensor([7, 8]), torch.tensor([[7], [8]])):
        out = RejectionSampler()(metadata([[1], [2]]), None, logits, bonus, how(2, all_greedy=True))
        assert out.tolist() == [[1, 7], [2, 8]]
    with pytest.raises(ValueError, match=r"bonus_token_ids \[1, 2\]; expected \[B\] or \[B, 1\], B = 2"):
        RejectionSampler()(metadata([[1], [2]]), None, logits, torch.zeros(1, 2), how(2, all_greedy=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("greedy", [True, False])
def test_requests_that_cannot_be_sampled_are_empty(bad: float, greedy: bool) -> None:
    logits = logits_for([1, 2])
    logits[0, 0 if bad == bad and bad > 0 else slice(None)] = bad
    out = RejectionSampler()(metadata([[1], [2]]), None, logits, torch.tensor([7, 8]), how(2, all_greedy=greedy))
    assert RejectionSampler.failed(out).tolist() == [True, False]
    assert out[0].tolist() == [-1, -1] and RejectionSampler.parse_output(out, V)[0] == []


def test_no_request_drafted() -> None:
    bonus = torch.tensor([[3], [4]])
    for s in (how(2), how(2, temperature=None, all_greedy=True)):
        out = RejectionSampler()(metadata([[], []]), None, torch.zeros(0, V), bonus, s)
        assert out.tolist() == [[3], [4]]


@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("fields", [{}, {"top_k": 9, "top_p": 0.9, "temperature": 0.8}], ids=["plain", "truncated"])
def test_tokens_are_draws_from_the_target(one_hot: bool, fields: dict[str, float]) -> None:
    torch.manual_seed(1)
    rows = 20_000
    p = torch.randn(2, V) * 1.2
    q = (-0.3 * p + torch.randn(2, V) * 0.6).softmax(-1)
    drafts = p.argmax(-1).expand(rows, 2) if one_hot else torch.multinomial(q, rows, replacement=True).T
    truncation = {
        "temperature": torch.full((rows,), fields.get("temperature", 1.0)),
        "top_k": torch.full((rows,), int(fields["top_k"])) if fields else None,
        "top_p": torch.full((rows,), fields["top_p"]) if fields else None,
    }
    out = RejectionSampler()(
        metadata(drafts.tolist()),
        None if one_hot else q.repeat(rows, 1),
        p.repeat(rows, 1),
        torch.zeros(rows, 1, dtype=torch.int32),
        how(rows, **truncation),
    )
    for i in range(2):
        expected = torch.from_numpy(oracle.distribution(p[i].double().numpy(), oracle.Row(**fields)))
        assert p_value(out[out[:, i] >= 0, i].long(), expected) > 1e-4
    assert int((out[:, 1] >= 0).sum()) > 500


def test_generators_affect_only_their_own_request() -> None:
    """A seed gives the same tokens in any batch; generators of requests without drafts do not advance."""

    def draw(drafts: list[list[int]], request: int) -> list[int]:
        generator = torch.Generator().manual_seed(7)
        s = how(
            len(drafts), generators={request: generator, 0: torch.Generator().manual_seed(1)} | {request: generator}
        )
        logits = torch.zeros(sum(map(len, drafts)), V)
        out = RejectionSampler()(metadata(drafts), None, logits, torch.zeros(len(drafts), 1).int(), s)
        if not drafts[request]:
            assert torch.equal(generator.get_state(), torch.Generator().manual_seed(7).get_state())
        return out[request].tolist()[: 1 + len(drafts[request])]

    assert draw([[1], [2, 3]], 1) == draw([[4, 4], [], [2, 3]], 2)
    draw([[1, 2], []], 1)


def test_arguments_that_do_not_fit() -> None:
    bonus = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="expected a row for each of 2 drafts"):
        RejectionSampler()(metadata([[1, 2]]), None, torch.zeros(3, V), bonus, how(1))
    with pytest.raises(ValueError, match=r"max_spec_len=33, and 33 drafts in a request; .* at most 32"):
        RejectionSampler()(metadata([[1] * 33]), None, torch.zeros(33, V), bonus, how(1))
    with pytest.raises(ValueError, match="draft_probs"):
        RejectionSampler()(metadata([[1]]), torch.zeros(2, V), torch.zeros(1, V), bonus, how(1))
    with pytest.raises(ValueError, match="temperature is None"):
        RejectionSampler()(metadata([[1]]), None, torch.zeros(1, V), bonus, how(1, temperature=None))
