"""Plans of the goodput policy for costs and acceptance with a clear best choice."""

from dataclasses import replace

import pytest

from specpipe.core import CostPoint, Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.acceptance import Acceptance
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.policies.exploration import FIRST_ROUNDS
from specpipe.speculation.policies.goodput import Goodput

SLOTS = 64
PROPOSERS: tuple[ProposerName, ...] = ("none", "draft", "ngram")


def seconds(k: int, n: int, *, draft_step_s: float = 2e-4) -> float:
    """Returns the seconds of a round: with few rows drafts are nearly free, with many they cost as much as rows."""
    return 5e-3 + 1e-4 * n * (k + 1) + k * draft_step_s


def costs(**changes: float) -> RoundCosts:
    points = [
        CostPoint(
            proposer="draft" if k else "none",
            k=k,
            running=n,
            context=1,
            rounds=64,
            seconds=64 * seconds(k, n, **changes),
        )
        for _ in range(3)
        for k in range(6)
        for n in (1, 2, 4, 8, 16, 32, 64)
    ]
    known = RoundCosts().with_points(points)
    return replace(known, confirmed=dict.fromkeys(PROPOSERS, known.rounds))


def acceptance(*rates: float, weight: float = 100_000.0) -> Acceptance:
    return Acceptance(rates=rates, weights=(weight,) * len(rates))


def inputs(draft: Acceptance, **changes: object) -> PolicyInputs:
    known: dict[ProposerName, Acceptance] = {"draft": draft}
    return replace(
        PolicyInputs(
            slots=SLOTS, queue_depth=1000, acceptance=known, costs=COSTS, context=1, input_tokens=100,
            output_tokens=200,
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


COSTS = costs()
NGRAM_POINTS = [
    CostPoint(proposer="ngram", k=k, running=n, context=1, rounds=64, seconds=64 * seconds(k, n))
    for k in (2, 4)
    for n in (1, 8, 64)
]
GOOD, BAD = acceptance(*[0.9] * 5), acceptance(*[0.01] * 5)
POLICY = Goodput(k=5, proposers=("draft",))


def trial(plan: SpeculationPlan) -> Exploration:
    (explore,) = plan.explore
    return explore


def test_k_is_the_one_with_most_tokens_per_second() -> None:
    plan = POLICY.plan(inputs(GOOD))
    assert plan.k_for(1) == 5 and plan.k_for(64) < 5
    for n in (1, 4, 16, 32, 64):
        best = max(range(6), key=lambda k: sum(0.9**i for i in range(k + 1)) / seconds(k, n))
        assert abs(plan.k_for(n) - best) <= 1, n


def test_draft_without_acceptance_is_not_used() -> None:
    plan = POLICY.plan(inputs(BAD))
    assert (plan.ks, plan.proposer) == ((0,) * (SLOTS + 1), "none")
    assert "plain at 64 rows" in plan.reason and "draft accepted 0.01" in plan.reason


def test_position_never_accepted_is_not_drafted() -> None:
    assert max(POLICY.plan(inputs(acceptance(0.95, 0.9, 0.0))).ks) == 2


def test_plan_contains_expected_tokens_per_second() -> None:
    plan = POLICY.plan(inputs(GOOD))
    expected = sum(0.9**i for i in range(6)) / seconds(5, 1)
    assert plan.tokens_per_s[1] == pytest.approx(expected, rel=0.1)
    assert len(plan.tokens_per_s) == len(plan.ks) == SLOTS + 1


def test_catching_up_is_paid_by_the_tokens_that_remain() -> None:
    dear = inputs(GOOD, queue_depth=3, occupancy=3, prefill_s=3e-6, costs=costs(draft_step_s=1e-3))
    assert POLICY.plan(replace(dear, behind=500.0)).k_for(3) > 0
    assert POLICY.plan(replace(dear, behind=200_000.0)).k_for(3) == 0
    assert POLICY.plan(replace(dear, behind=500.0, left_tokens=0.1)).k_for(3) == 0, "rows near their end"


def test_long_prompts_of_waiting_rows_turn_the_draft_off() -> None:
    known = inputs(GOOD, occupancy=8, input_tokens=200_000, prefill_s=3e-6, costs=costs(draft_step_s=1e-3))
    assert POLICY.plan(known).k_for(8) == 0
    assert POLICY.plan(replace(known, input_tokens=10)).k_for(8) > 0


def test_proposer_with_higher_throughput_is_chosen() -> None:
    policy = Goodput(k=5, proposers=("draft", "ngram"))
    timed = COSTS.with_points(NGRAM_POINTS)
    for draft, ngram, best in ((GOOD, BAD, "draft"), (BAD, GOOD, "ngram"), (BAD, BAD, "none")):
        plan = policy.plan(inputs(draft, acceptance={"draft": draft, "ngram": ngram}, costs=timed))
        assert plan.proposer == best, plan.reason


def test_promising_k_is_tried_within_the_budget() -> None:
    plan = POLICY.plan(inputs(acceptance(0.0, 0.0, weight=20.0), queue_depth=8))
    explore = trial(plan)
    assert explore.k > plan.k_for(8) == 0 and explore.every >= 32
    assert f"tries draft K={explore.k} in 1 of {explore.every} rounds" in plan.reason
    rounds = [plan.choice(8, i) for i in range(10 * explore.every)]
    assert rounds.count(("draft", explore.k)) == 10


@pytest.mark.parametrize(("known", "other"), [(GOOD, "none"), (BAD, "draft")])
def test_other_side_is_tried_again_whatever_the_estimates_say(known: Acceptance, other: ProposerName) -> None:
    one_row = inputs(known, queue_depth=1, occupancy=1)
    for rounds, confirmed, due in ((1, 0, True), (79, 20, False), (80, 20, True)):
        costs_then = replace(COSTS, rounds=rounds, confirmed={"draft": confirmed, "none": confirmed})
        plan = POLICY.plan(replace(one_row, costs=costs_then))
        expected = [(FIRST_ROUNDS, other, int(other == "draft"))] if due else []
        assert [(explore.every, explore.proposer, explore.k) for explore in plan.explore] == expected, rounds


def test_each_proposer_has_a_trial_of_its_own() -> None:
    means = acceptance(0.5, 0.5, weight=20.0)
    known = inputs(means, acceptance={"draft": means, "ngram": means}, costs=COSTS.with_points(NGRAM_POINTS))
    plan = Goodput(k=5, proposers=("draft", "ngram")).plan(replace(known, queue_depth=8))
    assert {"draft", "ngram"} <= {explore.proposer for explore in plan.explore}
    every = [explore.every for explore in plan.explore]
    assert every == sorted(every, reverse=True)
    tried = {plan.exploring(i) for i in range(every[0])}
    assert set(plan.explore) <= tried or len(set(every)) < len(every)


def test_no_trial_where_hope_is_slower_than_the_plan() -> None:
    hopeless = inputs(Acceptance(), occupancy=SLOTS, costs=costs(draft_step_s=2e-2))
    assert POLICY.plan(hopeless).explore == ()


def test_trial_catches_up_one_row_while_the_draft_is_off() -> None:
    off = inputs(acceptance(0.0, weight=20.0), queue_depth=8, behind=400.0)
    assert trial(POLICY.plan(off)).catch_up == 400
    on = POLICY.plan(inputs(acceptance(0.9, 0.9, 0.3, weight=20.0), queue_depth=8))
    assert on.k_for(8) and trial(on).catch_up is None


def test_mixture_of_experts_drafts_more_at_64_rows_than_at_4() -> None:
    """64 rows hit all experts with one token each: further tokens are free. Those of 4 rows hit further experts."""

    def mixture_s(k: int, n: int) -> float:
        return 1e-3 + 14e-3 * (1 - (15 / 16) ** (n * (k + 1))) + 2e-6 * n * (k + 1) + 6e-4 * k

    timed = [
        CostPoint(proposer="draft" if k else "none", k=k, running=n, context=1, rounds=64, seconds=64 * mixture_s(k, n))
        for k in (0, 2)
        for n in (1, 8, 64)
    ]
    known = inputs(acceptance(*[0.8] * 5), costs=RoundCosts(expert_share=1 / 16).with_points(timed))
    plan = POLICY.plan(known)
    for n in (4, 64):
        best = max(range(6), key=lambda k: sum(0.8**i for i in range(k + 1)) / mixture_s(k, n))
        assert plan.k_for(n) == best, n
    assert plan.k_for(64) > plan.k_for(4)


def test_plan_without_measured_rounds_is_plain_decoding() -> None:
    plan = POLICY.plan(inputs(GOOD, costs=RoundCosts()))
    assert plan.max_k == 0 and "no round is timed" in plan.reason
