"""Synthetic acceptance of the policy comparison."""

from __future__ import annotations

import pytest

from specpipe.benchmark.policy_comparison import extended_rates


@pytest.mark.parametrize(
    ("rates", "k", "expected"),
    [
        ((0.8, 0.4), 4, (0.8, 0.4, 0.2, 0.1)),
        ((0.5,), 3, (0.5, 0.25, 0.125)),
        ((0.0,), 2, (0.0, 0.0)),
        ((0.9, 0.8, 0.7), 2, (0.9, 0.8)),
    ],
)
def test_last_conditional_rate_is_repeated(rates: tuple[float, ...], k: int, expected: tuple[float, ...]) -> None:
    assert extended_rates(rates, k) == pytest.approx(expected)
