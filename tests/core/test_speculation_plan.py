"""SpeculationPlan: proposer and K of a round, from occupancy and round number alone."""

from __future__ import annotations

import pytest

from specpipe.core import MAX_DRAFT_TOKENS, Exploration, SpeculationPlan

EXPLORATION = Exploration(k=3, proposer="ngram", every=5, catch_up=40)


def plan(**changes: object) -> SpeculationPlan:
    return SpeculationPlan(**{"ks": (0, 4, 2), "proposer": "draft", "queue_depth": 1.0, "reason": "test", **changes})


def test_last_k_holds_for_more_rows() -> None:
    assert [plan().choice(running, 0) for running in (0, 1, 2, 99)] == [
        ("none", 0), ("draft", 4), ("draft", 2), ("draft", 2)
    ]  # fmt: skip
    assert (plan().max_k, plan(explore=(Exploration(k=7, proposer="draft", every=2),)).max_k) == (4, 7)


def test_last_round_of_each_period_explores() -> None:
    explored = plan(explore=(EXPLORATION,))
    assert [explored.choice(2, round_) for round_ in range(6)] == [("draft", 2)] * 4 + [("ngram", 3), ("draft", 2)]


def test_expected_speed_is_zero_without_estimate() -> None:
    estimated = plan(tokens_per_s=(0.0, 50.0, 90.0))
    assert [estimated.expected_tokens_per_s(running) for running in (1, 2, 9)] == [50.0, 90.0, 90.0]
    assert plan().expected_tokens_per_s(2) == 0.0


def test_rows_start_with_drafts_up_to_the_limit() -> None:
    limited = plan(new_rows_limit=2)
    assert [limited.speculates(running) for running in (1, 2, 3)] == [True, True, False]
    assert limited.k_for(99) == plan().k_for(99) and plan().speculates(99)


@pytest.mark.parametrize(
    "changes",
    [
        {"ks": ()},
        {"ks": (-1,)},
        {"ks": (MAX_DRAFT_TOKENS + 1,)},
        {"new_rows_limit": -1},
    ],
)
def test_invalid_plan_raises(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        plan(**changes)


@pytest.mark.parametrize("changes", [{"k": -1}, {"k": MAX_DRAFT_TOKENS + 1}, {"every": 1}, {"catch_up": -1}])
def test_invalid_exploration_raises(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Exploration(**{"k": 3, "proposer": "draft", "every": 5, **changes})
