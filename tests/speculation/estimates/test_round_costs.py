"""Estimated round costs: what few, late, slow and foreign measurements are worth."""

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.estimates.round_model import TERMS, RoundWork


def truth(k: int, n: int, context: float = 256.0) -> float:
    """Returns the seconds of a round, about those of an H200 with models of 8B and 1B: weights, arithmetic, KV."""
    verify = 4.2e-3 + 2.6e-5 * n * (k + 1) + 3e-8 * n * context
    return verify + k * (1e-3 + 8e-6 * n)


def point(k: int, n: int, *, rounds: int = 16, context: float = 256.0, factor: float = 1.0) -> CostPoint:
    proposer: ProposerName = "draft" if k else "none"
    seconds = rounds * factor * truth(k, n, context)
    return CostPoint(proposer=proposer, k=k, running=n, context=context, rounds=rounds, seconds=seconds)


def work(k: int, n: int, context: float = 256.0) -> RoundWork:
    return RoundWork("draft" if k else "none", k, n, n * context)


def ratio(costs: RoundCosts, k: int, n: int) -> float:
    """Returns the seconds of a round with K drafts over those of a plain one."""
    return costs.seconds(work(k, n)) / costs.seconds(work(0, n))


def prior(points: list[CostPoint]) -> RoundCosts:
    """Returns what a later run reads from the cache."""
    return RoundCosts.from_json(json.loads(json.dumps(RoundCosts().with_points(points).to_json())))


PROFILE = [point(k, n, rounds=5) for k in (0, 2) for n in (1, 8, 64)]


def test_profile_predicts_other_rounds() -> None:
    costs = RoundCosts().with_points(PROFILE)
    for k in (0, 1, 3, 5):
        for n in (1, 5, 16, 30, 64):
            rel = 0.03 if n * (k + 1) <= 192 else 0.2  # the profile has no wider round
            assert costs.seconds(work(k, n)) == pytest.approx(truth(k, n), rel=rel), (k, n)


@pytest.mark.parametrize("points", [PROFILE, PROFILE[:1], [point(3, 7)], [*PROFILE, point(2, 30, factor=9)]])
@pytest.mark.parametrize("proposer", ["draft", "ngram", "none"])
def test_seconds_never_decrease_in_rows_or_k(points: list[CostPoint], proposer: ProposerName) -> None:
    grid = RoundCosts().with_points(points).grid(proposer=proposer, max_k=8, slots=97, context=300)
    assert np.isfinite(grid).all() and (grid > 0).all()
    assert (np.diff(grid, axis=0) >= -1e-15).all() and (np.diff(grid, axis=1) >= -1e-15).all()
    assert (grid[:, 0] == grid[:, 1]).all()


def test_grid_equals_the_seconds_of_its_rounds() -> None:
    costs = RoundCosts().with_points(PROFILE)
    grid = costs.grid(proposer="draft", max_k=3, slots=9, context=300)
    for k in range(4):
        for n in (1, 4, 9):
            assert grid[k, n] == pytest.approx(costs.seconds(work(k, n, 300)))


def test_measurements_follow_what_the_model_lacks() -> None:
    """Where kernels change their tiles, rounds of one size take 30 % longer than their neighbours."""
    costs = RoundCosts().with_points(PROFILE)
    for _ in range(8):
        costs = costs.with_points([point(3, 48, factor=1.3), point(0, 48, rounds=1)])
    assert ratio(costs, 3, 48) == pytest.approx(1.3 * truth(3, 48) / truth(0, 48), rel=0.08)


def test_first_slow_draft_round_is_corrected_by_a_few_more() -> None:
    """A run of a few rows that saw one draft round, at ten times its usual time, as the first of its shape."""
    plain = [point(0, n, rounds=40) for n in (1, 2, 3, 4, 8, 16)]
    cached = prior([point(2, 1, rounds=1, factor=10), *plain])
    assert ratio(cached, 2, 16) > 1.5 * truth(2, 16) / truth(0, 16)
    own = cached.with_points([point(0, 16)])
    for _ in range(4):
        own = own.with_points([point(2, 16, rounds=1), point(0, 16)])
    assert ratio(own, 2, 16) == pytest.approx(truth(2, 16) / truth(0, 16), rel=0.1)


def test_one_scale_corrects_the_cache_of_a_slower_machine() -> None:
    measured = [point(k, n, rounds=64, factor=2) for k in range(4) for n in (1, 4, 16, 64)]
    costs = prior(measured).with_points([point(0, 16)] * 4)
    assert costs.seconds(work(0, 16)) == pytest.approx(truth(0, 16), rel=0.05)
    assert costs.seconds(work(3, 16)) == pytest.approx(truth(3, 16), rel=0.4), "never timed here"


def test_burst_of_a_neighbour_leaves_the_comparison_of_k() -> None:
    costs = RoundCosts().with_points([*PROFILE, *[point(3, 16), point(0, 16)] * 4])
    before = ratio(costs, 3, 16)
    for _ in range(6):
        costs = costs.with_points([point(3, 16, factor=2)])
    assert ratio(costs, 3, 16) == pytest.approx(before, rel=0.1)


def test_estimate_is_confirmed_by_a_measurement_near_it() -> None:
    costs = RoundCosts().with_points(PROFILE)
    assert not costs.confirmed, "nothing was expected before"
    costs = costs.with_points([point(0, 8), point(2, 8, rounds=1, factor=10)])
    assert costs.confirmed == {"none": costs.rounds}
    assert costs.with_points([point(2, 8)]).confirmed["draft"] > costs.rounds


def test_prices_follow_a_machine_that_changes_after_long_runs() -> None:
    costs = RoundCosts().with_points(PROFILE)
    for _ in range(2000):
        costs = costs.with_points([point(3, 16, rounds=15), point(0, 16, rounds=1)])
    for _ in range(40):
        costs = costs.with_points([point(3, 16, rounds=15, factor=1.3), point(0, 16, rounds=1)])
    assert ratio(costs, 3, 16) == pytest.approx(1.3 * truth(3, 16) / truth(0, 16), rel=0.05)


def test_uncertainty_of_a_ratio_falls_with_measurements_of_both() -> None:
    costs = RoundCosts().with_points(PROFILE)
    works = RoundWork("draft", np.arange(4.0), 16, 16 * 256.0)
    before, after = (
        costs.ratio_sd(works, work(0, 16)),
        costs.with_points([point(3, 16, rounds=1)] * 9).ratio_sd(works, work(0, 16)),
    )
    assert before[0] == 0 and (after[1:] < before[1:]).all() and (np.diff(before) > 0).all()


CPU_PROFILE: dict[tuple[ProposerName, int, int], float] = {
    ("none", 0, 1): 0.044, ("none", 0, 4): 0.0855, ("draft", 2, 1): 0.0907, ("draft", 2, 4): 0.2144,
    ("ngram", 2, 1): 0.069, ("ngram", 2, 4): 0.1838, ("none", 0, 2): 0.0578, ("draft", 2, 2): 0.1329,
    ("ngram", 2, 2): 0.1095,
}  # fmt: skip


def test_profile_of_a_machine_bound_by_arithmetic_is_fitted() -> None:
    """The fit must not end where the root of the tokens explains all rounds, with errors of up to 16 %."""
    points = [
        CostPoint(proposer=who, k=k, running=n, context=256, rounds=5, seconds=5 * seconds)
        for (who, k, n), seconds in CPU_PROFILE.items()
    ]
    costs = RoundCosts().with_points(points)
    for (who, k, n), seconds in CPU_PROFILE.items():
        assert costs.seconds(RoundWork(who, k, n, 256 * n)) == pytest.approx(seconds, rel=0.06), (who, k, n)


def test_rounds_slower_than_ever_after_are_forgotten() -> None:
    slow = RoundCosts().with_points([point(k, 4, rounds=1, factor=10) for k in (0, 1, 2, 3)])
    costs = slow.with_points([point(0, 4)] * 2)
    assert costs.seconds(work(0, 4)) == pytest.approx(truth(0, 4), rel=0.2)
    assert costs.seconds(work(2, 4)) < 4 * truth(2, 4), "of the same machine, so not ten times as long either"


def test_single_hiccup_moves_an_estimate_little() -> None:
    costs = RoundCosts().with_points([*PROFILE, *[point(2, 16)] * 4])
    before = costs.seconds(work(2, 16))
    assert costs.with_points([point(2, 16, rounds=1, factor=10)]).seconds(work(2, 16)) < 1.1 * before


def test_mixture_reads_more_experts_for_the_first_drafts_of_few_rows() -> None:
    def mixture(k: int, n: int) -> float:
        return 1e-3 + 14e-3 * (1 - (15 / 16) ** (n * (k + 1))) + 6e-4 * k

    points = [replace(point(k, n), seconds=16 * mixture(k, n), context=0.0) for k in (0, 2) for n in (1, 8, 64)]
    costs = RoundCosts(expert_share=1 / 16).with_points(points * 4)
    for k in (0, 1, 3):
        for n in (1, 4, 16, 64):
            assert costs.seconds(work(k, n, 0)) == pytest.approx(mixture(k, n), rel=0.1), (k, n)


def test_longer_context_takes_longer() -> None:
    costs = RoundCosts().with_points([*PROFILE, point(0, 64, context=4096)])
    assert costs.seconds(work(0, 64, 8192)) > 1.2 * costs.seconds(work(0, 64))


def test_cached_prices_are_the_same_and_uncertain() -> None:
    costs = RoundCosts(expert_share=0.25).with_points(PROFILE)
    again = RoundCosts.from_json(json.loads(json.dumps(costs.to_json())))
    assert again.to_json() == {**costs.to_json(), "rounds": 1.0} and costs.rounds == 30
    assert (np.diagonal(again.covariance) > np.diagonal(costs.covariance)).sum() > 4, "uncertain, but for n-grams"


def test_pickled_costs_are_the_same_and_small() -> None:
    costs = RoundCosts().with_points(PROFILE)
    costs.grid(proposer="draft", max_k=5, slots=256, context=300)
    data = pickle.dumps(costs)
    assert len(data) < 2000 and pickle.loads(data).to_json() == costs.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3, "terms": {}},
        {"rounds": 0},
        {"seconds": {}},
        {"seconds": dict.fromkeys(TERMS, -1.0)},
        {"seconds": dict.fromkeys(TERMS, math.nan)},
        {"expert_share": 2.0},
    ],
)
def test_invalid_json_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        RoundCosts.from_json({**RoundCosts().with_points(PROFILE).to_json(), **change})


def test_costs_without_measurements_are_false_and_estimate_nothing() -> None:
    empty = RoundCosts().with_points([point(0, 4, rounds=0)])
    assert not empty
    with pytest.raises(ValueError, match="no round was measured"):
        empty.grid(proposer="draft", max_k=2, slots=4, context=100)
