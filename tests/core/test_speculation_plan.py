"""What a plan says of a round, by its count alone."""

from __future__ import annotations

import pytest

from specpipe.core import MAX_DRAFT_TOKENS, Exploration, SpeculationPlan

TRIES = Exploration(k=3, proposer="ngram", rounds=2, every=5, catch_up=40)


def plan(**changes: object) -> SpeculationPlan:
    return SpeculationPlan(**{"ks": (0, 4, 2), "proposer": "draft", "queue_depth": 1.0, "reason": "test", **changes})


def test_k_goes_by_the_rows_that_run_and_the_last_holds_beyond() -> None:
    assert [plan().choice(running, 0) for running in (0, 1, 2, 99)] == [
        ("none", 0), ("draft", 4), ("draft", 2), ("draft", 2)
    ]  # fmt: skip
    assert (plan().max_k, plan(explore=Exploration(k=7, proposer="draft", rounds=1, every=2)).max_k) == (4, 7)


def test_the_last_rounds_of_every_few_try_something_else() -> None:
    tried = plan(explore=TRIES)
    assert [tried.choice(2, round_) for round_ in range(6)] == [("draft", 2)] * 3 + [("ngram", 3)] * 2 + [("draft", 2)]
    assert [TRIES.unchanged(round_) for round_ in range(6)] == [3, 2, 1, 2, 1, 3]


def test_the_draft_catches_up_before_the_first_of_them_alone() -> None:
    assert [TRIES.catch_up_at(round_) for round_ in (3, 4, 8, 9)] == [40, 0, 40, 0]
    assert Exploration(k=3, proposer="draft", rounds=2, every=5).catch_up_at(3) is None


def test_what_a_worker_is_expected_to_generate_may_be_unknown() -> None:
    told = plan(tokens_per_s=(0.0, 50.0, 90.0))
    assert [told.expected_tokens_per_s(running) for running in (1, 2, 9)] == [50.0, 90.0, 90.0]
    assert plan().expected_tokens_per_s(2) == 0.0


@pytest.mark.parametrize(
    "changes", [{"ks": ()}, {"ks": (-1,)}, {"ks": (MAX_DRAFT_TOKENS + 1,)}, {"least_ready": 1.1}, {"least_ready": -0.1}]
)
def test_a_plan_that_no_engine_could_follow_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        plan(**changes)


@pytest.mark.parametrize(
    "changes", [{"k": -1}, {"k": MAX_DRAFT_TOKENS + 1}, {"rounds": 0}, {"rounds": 5}, {"catch_up": -1}]
)
def test_so_are_tries(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Exploration(**{"k": 3, "proposer": "draft", "rounds": 2, "every": 5, **changes})
