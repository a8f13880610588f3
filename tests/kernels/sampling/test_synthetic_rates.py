"""`synthetic_rates`: an acceptance length as rates per position."""

from __future__ import annotations

import pytest

from specpipe_kernels import synthetic_rates


@pytest.mark.parametrize(
    ("k", "length", "rates"),
    [
        (3, 1.0, (0, 0, 0)),
        (3, 2.5, (1, 0.5, 0)),
        (3, 4.0, (1, 1, 1)),
        (4, 3.25, (1, 1, 0.25, 0)),
        (0, 1.0, ()),
    ],
)
def test_rates_are_ones_then_the_fraction_then_zeros(k: int, length: float, rates: tuple[float, ...]) -> None:
    assert synthetic_rates(k, length) == pytest.approx(rates)
    assert sum(synthetic_rates(k, length)) == pytest.approx(length - 1)


@pytest.mark.parametrize("length", [0.9, 4.1, float("nan")])
def test_impossible_acceptance_lengths_are_refused(length: float) -> None:
    with pytest.raises(ValueError, match=r"expected 1 to K \+ 1 = 4"):
        synthetic_rates(3, length)
