"""Plans of the goodput policy for costs and acceptance with a clear best choice."""

from dataclasses import replace

import pytest

from specpipe.core import AcceptanceCounts, CostPoint, PrefillPoint, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.exploration import EARLY_ROUNDS, MAX_INTERVAL
from specpipe.speculation.policies.goodput import Goodput

SLOTS = 64


def seconds(k: int, n: int) -> float:
    """Returns the seconds of a round: drafts are nearly free up to 64 tokens a batch, then cost as much as rows."""
    return 5e-3 + 1e-4 * max(0, n * (k + 1) - 64) + k * 2e-4


def table(*, draft_token_s: float = 1e-7) -> CostTable:
    points = [
        CostPoint(proposer="draft" if k else "none", k=k, running=n, context=200, rounds=500, seconds=500 * cost)
        for k in range(6)
        for n in (1, 2, 4, 8, 16, 32, 64)
        for cost in [seconds(k, n)]
    ]
    prefill = PrefillPoint(forwards=1000, tokens=2_000_000, seconds=2_000_000 * draft_token_s)
    return CostTable(points, prefills=[prefill])


def acceptance(*rates: float, drafts: int = 100_000) -> AcceptanceEstimate:
    reached = [float(drafts)]
    for rate in rates:
        reached.append(reached[-1] * rate)
    counts = AcceptanceCounts(
        drafts=drafts,
        reached_per_position=tuple(round(r) for r in reached[:-1]),
        accepted_per_position=tuple(round(r) for r in reached[1:]),
    )
    return AcceptanceEstimate().with_counts(counts, row_rounds=drafts, keep=1.0)


OFF = SpeculationPlan(ks=(0,), proposer="none", queue_depth=0, reason="in force")


def inputs(draft: AcceptanceEstimate, **changes: object) -> PolicyInputs:
    known: dict[ProposerName, AcceptanceEstimate] = {"draft": draft}
    return replace(
        PolicyInputs(
            slots=SLOTS, queue_depth=1000, acceptance=known, costs=table(), context=200, input_tokens=100,
            output_tokens=200, rounds=EARLY_ROUNDS, plan=OFF,
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


GOOD = acceptance(0.9, 0.9, 0.9, 0.9, 0.9)
BAD = acceptance(0.01, 0.01, 0.01, 0.01, 0.01)
POLICY = Goodput(k=5, proposers=("draft",))


def test_few_rows_get_large_k_and_many_rows_small() -> None:
    plan = POLICY.plan(inputs(GOOD))
    assert plan.k_for(1) == 5 and plan.k_for(64) <= 1
    for n in (1, 4, 16, 32, 64):
        best = max(range(6), key=lambda k: sum(0.9**i for i in range(k + 1)) / seconds(k, n))
        assert abs(plan.k_for(n) - best) <= 1, n


def test_draft_without_acceptance_is_not_used() -> None:
    plan = POLICY.plan(inputs(BAD))
    assert (plan.ks, plan.proposer) == ((0,) * (SLOTS + 1), "none")
    assert "plain at 64 rows" in plan.reason and "draft accepted 0.01" in plan.reason


def test_position_never_accepted_is_not_drafted() -> None:
    assert POLICY.plan(inputs(acceptance(0.95, 0.9, 0.0))).max_k <= 3


def test_plan_contains_expected_tokens_per_second() -> None:
    plan = POLICY.plan(inputs(GOOD))
    expected = sum(0.9**i for i in range(6)) / seconds(5, 1)
    assert plan.tokens_per_s[1] == pytest.approx(expected, rel=0.1)
    assert len(plan.tokens_per_s) == len(plan.ks) == SLOTS + 1


def test_plan_in_force_survives_a_small_advantage() -> None:
    for n in (1, 16):
        best = POLICY.plan(inputs(GOOD)).k_for(n)
        near = SpeculationPlan(ks=(best - 1,) * (SLOTS + 1), proposer="draft", queue_depth=0, reason="in force")
        sticky = replace(POLICY, hysteresis=1.0)
        assert sticky.plan(inputs(GOOD, plan=near)).k_for(n) == best - 1
        assert POLICY.plan(inputs(GOOD, plan=replace(near, ks=(0,)))).k_for(n) > 0


def test_expensive_catch_up_keeps_the_draft_off() -> None:
    tail = inputs(GOOD, queue_depth=3, behind=200.0)
    dear = replace(tail, costs=table(draft_token_s=1.0))
    assert POLICY.plan(tail).k_for(3) == 5
    assert POLICY.plan(dear).k_for(3) == 0
    assert POLICY.plan(replace(dear, behind=0.0, input_tokens=0.0)).k_for(3) == 5


def test_expensive_draft_prefills_of_new_rows_turn_it_off() -> None:
    dear = table(draft_token_s=5e-5)
    long_prompts = inputs(GOOD, occupancy=8, input_tokens=20_000, context=20_100, costs=dear)
    assert POLICY.plan(long_prompts).k_for(8) == 0
    assert POLICY.plan(replace(long_prompts, input_tokens=10, context=200)).k_for(8) > 0


def test_proposer_with_higher_throughput_is_chosen() -> None:
    policy = Goodput(k=5, proposers=("draft", "ngram"))
    for draft, ngram, best in ((GOOD, BAD, "draft"), (BAD, GOOD, "ngram"), (BAD, BAD, "none")):
        plan = policy.plan(inputs(draft, acceptance={"draft": draft, "ngram": ngram}))
        assert plan.proposer == best, plan.reason


def test_unknown_k_is_tried_within_the_budget() -> None:
    plan = POLICY.plan(inputs(acceptance(0.2), queue_depth=8, output_tokens=20_000))
    explore = plan.explore  # the second position may be anything
    assert explore is not None and explore.k > plan.k_for(8)
    assert explore.rounds / explore.every <= 0.01
    assert f"tries draft K={explore.k}" in plan.reason
    rounds = [plan.choice(8, i) for i in range(10 * explore.every)]
    assert rounds.count(("draft", explore.k)) == 10 * explore.rounds


def test_choices_with_much_evidence_are_not_explored() -> None:
    assert POLICY.plan(inputs(BAD)).explore is None
    assert POLICY.plan(inputs(GOOD)).explore is None


def test_trial_is_skipped_if_little_work_remains() -> None:
    tail = inputs(acceptance(0.2), queue_depth=4, output_tokens=20, behind=200.0)
    assert POLICY.plan(tail).explore is not None
    assert POLICY.plan(replace(tail, costs=table(draft_token_s=1e-3))).explore is None


def test_wrong_cost_estimates_are_tested_at_long_intervals() -> None:
    wrong = inputs(GOOD, occupancy=16, behind=300.0, costs=table(draft_token_s=1e-3))
    plan = POLICY.plan(wrong)
    assert plan.k_for(16) == 0 and plan.explore is not None
    assert plan.explore.k > 0 and plan.explore.every == MAX_INTERVAL, (
        "not rarer, although the estimated cost would allow it less often"
    )
    assert POLICY.plan(replace(wrong, costs=table())).k_for(16) > 0


def test_new_rows_get_a_trial_within_16_rounds() -> None:
    known = inputs(acceptance(0.0, drafts=200), queue_depth=8, output_tokens=20_000, behind=400.0)
    later, at_first = POLICY.plan(known).explore, POLICY.plan(replace(known, plan=None)).explore
    assert later is not None and at_first is not None
    assert at_first.every == 16 < later.every


def test_trial_limits_catch_up_while_the_draft_is_off() -> None:
    off = inputs(acceptance(0.0, drafts=200), queue_depth=8, output_tokens=20_000, behind=400.0, prefill_budget=8192)
    for behind, limit in ((400.0, 1600), (40.0, 1024), (4000.0, 8192)):
        explore = POLICY.plan(replace(off, behind=behind)).explore
        assert explore is not None and explore.catch_up == limit
    on = POLICY.plan(inputs(acceptance(0.2), queue_depth=8, output_tokens=20_000))
    assert on.k_for(8) and on.explore is not None and on.explore.catch_up is None


def test_old_evidence_requires_a_trial_before_large_catch_up() -> None:
    tail = inputs(GOOD.discounted(1e-5), queue_depth=32, behind=400.0)
    looks = POLICY.plan(tail)
    assert looks.max_k and not any(looks.ks) and looks.proposer == "none"
    assert looks.explore is not None and (looks.explore.every, looks.explore.catch_up) == (8, 1600)
    for known in (
        replace(tail, acceptance={"draft": GOOD}),
        replace(tail, behind=100.0),
        replace(tail, plan=replace(OFF, ks=(2,), proposer="draft")),
    ):
        assert POLICY.plan(known).k_for(32) > 0


def test_trials_with_catch_up_last_four_rounds() -> None:
    tail = inputs(acceptance(0.0, drafts=200), queue_depth=8, output_tokens=20_000, behind=400.0)
    explore, nothing_behind = POLICY.plan(tail).explore, POLICY.plan(replace(tail, behind=0.0)).explore
    assert explore is not None and explore.rounds == 4 and explore.rounds / explore.every <= 0.01
    assert [explore.catch_up_at(i) for i in range(explore.every - 4, explore.every)] == [explore.catch_up, 0, 0, 0]
    assert nothing_behind is not None and nothing_behind.rounds == 1


def test_proposer_without_evidence_gets_a_trial_within_16_rounds() -> None:
    dear = inputs(
        AcceptanceEstimate(), queue_depth=40, rounds=0, behind=400.0, costs=table(draft_token_s=2e-5), input_tokens=10
    )
    explores = []
    for known in (AcceptanceEstimate(), acceptance(0.7, 0.7, drafts=20)):
        plan = POLICY.plan(replace(dear, acceptance={"draft": known}))
        assert plan.k_for(40) == 0 and plan.explore is not None
        explores.append(plan.explore.every)
    assert explores[0] == 16 < explores[1]


def test_least_ready_is_the_break_even_share_of_rows() -> None:
    few, many = POLICY.plan(inputs(GOOD, queue_depth=4)), POLICY.plan(inputs(GOOD, queue_depth=40))
    assert few.k_for(4) and many.k_for(40)
    assert 0 < few.least_ready < many.least_ready < 1
    for plan, n in ((few, 4), (many, 40)):
        k = plan.k_for(n)
        tokens = 1 + plan.least_ready * sum(0.9**i for i in range(1, k + 1))
        assert tokens / seconds(k, n) == pytest.approx(1 / seconds(0, n), rel=0.1)
    assert POLICY.plan(inputs(BAD)).least_ready == 0


def test_plan_without_measured_rounds_is_plain_decoding() -> None:
    plan = POLICY.plan(inputs(GOOD, costs=None))
    assert plan.max_k == 0 and "no round is timed" in plan.reason
