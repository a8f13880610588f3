"""Prices of draft prefills, from forwards of all sizes."""

import json

import pytest

from specpipe.core import PrefillPoint
from specpipe.speculation.estimates.prefill_cost import PrefillCost

FORWARD, TOKEN = 1.2e-3, 3.5e-6


def point(tokens: int, *, forwards: int = 1, factor: float = 1.0) -> PrefillPoint:
    seconds = factor * forwards * (FORWARD + TOKEN * tokens)
    return PrefillPoint(forwards=forwards, tokens=forwards * tokens, seconds=seconds)


def seconds(cost: PrefillCost, tokens: float) -> float:
    return cost.price.seconds(tokens, 1.0)


def test_two_sizes_determine_both_prices() -> None:
    cost = PrefillCost([point(16, forwards=3), point(1024, forwards=3)])
    for tokens in (1, 16, 270, 1024, 4096):
        assert seconds(cost, tokens) == pytest.approx(FORWARD + TOKEN * tokens, rel=0.03)
    assert cost.price.seconds(7000.0, 3.5) == pytest.approx(3.5 * FORWARD + 7000 * TOKEN, rel=0.03)


def test_many_small_forwards_do_not_raise_token_price() -> None:
    cost = PrefillCost([point(300, forwards=3)])
    for _ in range(50):
        cost = cost.with_points([point(16, forwards=4), point(20)])
    assert seconds(cost, 4000) == pytest.approx(FORWARD + TOKEN * 4000, rel=0.1)


@pytest.mark.parametrize("tokens", [16, 2000])
def test_one_size_is_split_by_its_tokens(tokens: int) -> None:
    cost = PrefillCost([PrefillPoint(forwards=1, tokens=tokens, seconds=2e-3)])
    assert seconds(cost, tokens) == pytest.approx(2e-3, rel=0.01)
    forward, token = cost.price
    assert (forward > 10 * tokens * token) == (tokens == 16)
    assert (tokens * token > 10 * forward) == (tokens == 2000)


def test_outlier_is_clipped_and_lasting_change_is_followed() -> None:
    cost = PrefillCost([point(16, forwards=3), point(300, forwards=3)])
    once = cost.with_points([PrefillPoint(forwards=1, tokens=300, seconds=3.0)])
    assert seconds(once, 300) < 1.5 * seconds(cost, 300)
    later = cost
    for _ in range(200):
        later = later.with_points([point(16, factor=5), point(300, factor=5)])
    assert seconds(later, 300) == pytest.approx(5 * seconds(cost, 300), rel=0.1)


def test_prices_are_never_negative() -> None:
    cost = PrefillCost([PrefillPoint(forwards=9, tokens=9 * n, seconds=9 * s) for n, s in ((16, 2e-3), (900, 1e-3))])
    assert cost.price.token == 0.0
    assert 1e-3 < cost.price.forward < 2e-3


def test_old_prefills_decay() -> None:
    cost = PrefillCost([point(300, forwards=5000)])
    for _ in range(64):
        cost = cost.with_points([point(300, factor=1.5)])
    assert seconds(cost, 300) == pytest.approx(1.5 * (FORWARD + TOKEN * 300), rel=0.1)


def test_json_round_trip_keeps_prices_and_refuses_others() -> None:
    cost = PrefillCost([point(16), point(900)])
    again = PrefillCost.from_json(json.loads(json.dumps(cost.to_json())))
    assert again.to_json() == cost.to_json() and again.price == cost.price
    assert not PrefillCost([PrefillPoint(forwards=0, tokens=0, seconds=0.0)])
    with pytest.raises(ValueError, match="positive"):
        PrefillCost.from_json([{"forwards": 1, "tokens": 0, "seconds": 1}])
