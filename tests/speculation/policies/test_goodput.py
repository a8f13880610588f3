"""Plans of the goodput policy for costs and acceptance with a clear best choice."""

from dataclasses import replace

import pytest

from specpipe.core import CostPoint, Exploration, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.acceptance import Acceptance
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.policies.exploration import FIRST_INTERVAL
from specpipe.speculation.policies.goodput import Goodput

SLOTS = 64


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
    return RoundCosts(points)


def acceptance(*rates: float, weight: float = 100_000.0) -> Acceptance:
    return Acceptance(rates=rates, weights=(weight,) * len(rates), coverage_weight=weight)


def inputs(draft: Acceptance, **changes: object) -> PolicyInputs:
    known: dict[ProposerName, Acceptance] = {"draft": draft}
    return replace(
        PolicyInputs(
            slots=SLOTS, queue_depth=1000, acceptance=known, costs=COSTS, context=1, input_tokens=100,
            output_tokens=200, rounds=1000, timed={"draft": 999.0, "none": 999.0, "ngram": 999.0},
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


COSTS = costs()
GOOD, BAD = acceptance(*[0.9] * 5), acceptance(*[0.01] * 5)
POLICY = Goodput(k=5, proposers=("draft",))


def trial(plan: SpeculationPlan) -> Exploration:
    assert plan.explore is not None
    return plan.explore


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
    dear = inputs(GOOD, queue_depth=3, occupancy=3, costs=costs(draft_step_s=1e-3))
    assert POLICY.plan(replace(dear, behind=500.0, left=200.0)).k_for(3) > 0
    assert POLICY.plan(replace(dear, behind=200_000.0, left=10.0)).k_for(3) == 0


def test_long_prompts_of_waiting_rows_turn_the_draft_off() -> None:
    known = inputs(GOOD, occupancy=8, input_tokens=200_000, costs=costs(draft_step_s=1e-3))
    assert POLICY.plan(known).k_for(8) == 0
    assert POLICY.plan(replace(known, input_tokens=10)).k_for(8) > 0


def test_proposer_with_higher_throughput_is_chosen() -> None:
    policy = Goodput(k=5, proposers=("draft", "ngram"))
    timed = COSTS.with_points(
        CostPoint(proposer="ngram", k=k, running=n, context=1, rounds=64, seconds=64 * seconds(k, n))
        for k in (2, 4)
        for n in (1, 8, 64)
    )
    for draft, ngram, best in ((GOOD, BAD, "draft"), (BAD, GOOD, "ngram"), (BAD, BAD, "none")):
        plan = policy.plan(inputs(draft, acceptance={"draft": draft, "ngram": ngram}, costs=timed))
        assert plan.proposer == best, plan.reason


def test_promising_k_is_tried_within_the_budget() -> None:
    plan = POLICY.plan(inputs(acceptance(0.0, 0.0, weight=20.0), queue_depth=8))
    explore = trial(plan)
    assert explore.k > plan.k_for(8) == 0
    assert explore.rounds / explore.every <= 0.01
    assert f"tries draft K={explore.k}" in plan.reason
    rounds = [plan.choice(8, i) for i in range(10 * explore.every)]
    assert rounds.count(("draft", explore.k)) == 10 * explore.rounds


@pytest.mark.parametrize(("known", "side", "k"), [(GOOD, "none", 0), (BAD, "draft", 1)])
def test_other_side_is_tried_again_whatever_the_estimates_say(known: Acceptance, side: ProposerName, k: int) -> None:
    one_row = inputs(known, queue_depth=1, occupancy=1)
    for rounds, timed, due in ((0, 0, True), (50, 20, False), (100, 20, True), (9000, 5000, False), (9100, 5000, True)):
        plan = POLICY.plan(replace(one_row, rounds=rounds, timed={"draft": timed, "none": timed}))
        assert ((explore := plan.explore) is not None and explore.every == FIRST_INTERVAL) == due, (rounds, timed)
        if due:
            assert explore is not None and (explore.proposer, explore.k) == (side, k)


def test_trial_limits_catch_up_while_the_draft_is_off() -> None:
    off = inputs(acceptance(0.0, weight=20.0), queue_depth=8, behind=400.0, prefill_budget=8192)
    for behind, limit in ((400.0, 1132), (5000.0, 8192)):
        explore = trial(POLICY.plan(replace(off, behind=behind)))
        assert explore.catch_up == limit
        assert [explore.catch_up_at(i) for i in range(explore.every - explore.rounds, explore.every)] == [
            limit,
            *[0] * (explore.rounds - 1),
        ], "catching up is paid once"
    assert trial(POLICY.plan(replace(off, behind=0.0))).rounds == 1
    on = POLICY.plan(inputs(acceptance(0.9, 0.9, 0.3, weight=20.0), queue_depth=8))
    assert on.k_for(8) and trial(on).catch_up is None


def test_plan_without_measured_rounds_is_plain_decoding() -> None:
    plan = POLICY.plan(inputs(GOOD, costs=RoundCosts()))
    assert plan.max_k == 0 and "no round is timed" in plan.reason
