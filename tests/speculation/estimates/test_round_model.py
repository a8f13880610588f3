"""Fit of the round model."""

import numpy as np
import pytest

from specpipe.speculation.estimates.round_model import (
    FEATURES,
    LOAD_SLOWDOWN,
    _non_negative_least_squares,
    fit_model,
    model_terms,
)


def test_fit_is_the_minimum_over_non_negative_coefficients() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        rows = random.normal(size=(12, FEATURES)) * 10.0 ** random.integers(-3, 3, FEATURES)
        gram, target = rows.T @ rows + 1e-3 * np.eye(FEATURES), rows.T @ random.normal(size=12)
        x = _non_negative_least_squares(gram, target, random.random(FEATURES) < 0.5)
        slope = gram @ x - target
        scale = 1e-7 * (1 + np.abs(target).max())
        assert (x >= 0).all()
        assert (slope >= -scale).all(), "no coefficient could grow"
        assert np.abs(slope[x > 0]).max(initial=0) < scale, "none could shrink"


def test_fit_recovers_rounds_of_the_model() -> None:
    random = np.random.default_rng(1)
    k, n = random.integers(0, 6, 300).astype(float), random.integers(1, 257, 300).astype(float)
    draft = (random.random(300) < 0.5).astype(float)
    rows = np.stack(model_terms(draft, 1 - draft, k, n, random.uniform(10, 2000, 300)), axis=1)
    truth = np.array([4e-3, 2e-5, 3e-8, 1e-3, 8e-6, 1e-4, 1e-6, 3e-5, 2e-5])
    seconds = rows @ truth
    found = fit_model(np.column_stack([rows / seconds[:, None], np.zeros(300)]), np.ones(300))
    assert rows @ found[:FEATURES] == pytest.approx(seconds, rel=0.01)
    assert found[LOAD_SLOWDOWN] == 0
