import json
import pickle

import numpy as np
import pytest

from specpipe.core import CostPoint, PrefillPoint, Profile, ProposerName
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.round_model import FEATURES, model_terms, monotone


def truth(k: int, n: int, context: float = 256.0) -> float:
    """Returns the seconds of a round, about those of an H200 with models of 8B and 1B: weights, arithmetic, KV."""
    verify = 4.2e-3 + 2.6e-5 * n * (k + 1) + 3e-8 * n * context
    return verify + k * (1e-3 + 8e-6 * n)


def point(k: int, n: int, *, rounds: int = 10, context: float = 256.0, factor: float = 1.0) -> CostPoint:
    proposer: ProposerName = "draft" if k else "none"
    seconds = rounds * factor * truth(k, n, context)
    return CostPoint(proposer=proposer, k=k, running=n, context=context, rounds=rounds, seconds=seconds)


def seconds(table: CostTable, k: int, n: int, context: float = 256.0) -> float:
    return table.seconds(proposer="draft", k=k, running=n, context=context)


THREE = (point(0, 1), point(0, 64), point(5, 64))


@pytest.mark.parametrize("points", [THREE, THREE[:1], THREE[1:2], (point(3, 7),), (*THREE, point(2, 30, factor=9))])
@pytest.mark.parametrize("proposer", ["draft", "ngram", "none"])
def test_seconds_never_decrease_in_rows_or_k(points: tuple[CostPoint, ...], proposer: ProposerName) -> None:
    grid = CostTable(points).grid(proposer=proposer, max_k=8, slots=97, context=300).seconds
    assert np.isfinite(grid).all() and (grid > 0).all()
    assert (np.diff(grid, axis=0) >= 0).all() and (np.diff(grid, axis=1) >= 0).all()


def test_three_points_predict_all_rounds_within_25_percent() -> None:
    table = CostTable(THREE)
    for k in (0, 1, 3, 5):
        for n in (1, 5, 16, 40, 64):
            assert seconds(table, k, n) == pytest.approx(truth(k, n), rel=0.25), (k, n)


def test_new_round_shape_is_fitted_at_once() -> None:
    known, new = [point(0, n, rounds=500) for n in (1, 64)], point(5, 64)
    table = CostTable(known)
    seconds(table, 0, 1)
    assert seconds(table.with_points([new]), 2, 8) == pytest.approx(seconds(CostTable([*known, new]), 2, 8), rel=0.02)


def test_table_reproduces_measured_rounds() -> None:
    table = CostTable(THREE).with_points([point(2, 24, factor=1.3, rounds=50)])
    assert seconds(table, 2, 24) == pytest.approx(1.3 * truth(2, 24), rel=0.05)
    assert seconds(table, 0, 64) == pytest.approx(truth(0, 64), rel=0.05)


@pytest.mark.parametrize("gain", [1.0, 0.8])
def test_rounds_under_load_correct_the_profile(gain: float) -> None:
    rested = [point(0, 1), point(2, 1), point(0, 16), point(2, 16)]
    rested += [point(k, 256, factor=gain) for k in (0, 2)]
    table = CostTable().with_profile(Profile(rounds=tuple(rested)))
    assert seconds(table, 2, 256) == pytest.approx(gain * truth(2, 256), rel=0.05)
    later = table.with_points([point(0, 256, rounds=64, context=400)])
    assert seconds(later, 0, 256, 400) == pytest.approx(truth(0, 256, 400), rel=0.03)
    assert seconds(later, 2, 256, 400) == pytest.approx(truth(2, 256, 400), rel=0.05)
    assert seconds(later, 2, 1) == pytest.approx(truth(2, 1), rel=0.05)


def test_rounds_under_load_outweigh_the_profile() -> None:
    table = CostTable().with_profile(Profile(rounds=(point(0, 64, factor=0.5, rounds=64),)))
    assert seconds(table.with_points([point(0, 64, rounds=16)]), 0, 64) == pytest.approx(truth(0, 64), rel=0.1)


def test_old_measurements_decay() -> None:
    table = CostTable([point(0, 8, rounds=100_000)])
    for _ in range(4):
        table = table.with_points([point(0, 8, factor=2, rounds=64)])
    assert seconds(table, 0, 8) == pytest.approx(2 * truth(0, 8), rel=0.1)


def test_longer_context_takes_longer() -> None:
    table = CostTable([*THREE, point(0, 64, context=4096)])
    assert seconds(table, 0, 64, 8192) > 1.2 * seconds(table, 0, 64, 256)


def test_json_round_trip_keeps_the_table() -> None:
    table = CostTable(THREE).with_prefills([PrefillPoint(forwards=1, tokens=1000, seconds=0.004)])
    again = CostTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table and again != CostTable(THREE)
    assert again.draft_prefill.seconds(1000.0, 1.0) == pytest.approx(4e-3, rel=0.01)
    assert seconds(again, 3, 20) == pytest.approx(seconds(table, 3, 20))


def test_pickle_contains_measurements_only() -> None:
    table = CostTable(THREE).with_prefills([PrefillPoint(forwards=1, tokens=1000, seconds=0.004)])
    small = len(pickle.dumps(table))
    grid = table.grid(proposer="draft", max_k=5, slots=256, context=300)
    assert len(pickle.dumps(table)) == small
    again = pickle.loads(pickle.dumps(table))
    assert again == table
    assert (again.grid(proposer="draft", max_k=5, slots=256, context=300).seconds == grid.seconds).all()


def test_interpolated_rows_equal_computed_rows() -> None:
    points = [point(k, n, factor=1 + 0.1 * (n % 3), rounds=n) for k in (0, 2) for n in (1, 3, 19, 41, 150, 231, 256)]
    table, every = CostTable(points), np.arange(1.0, 257)
    few = table.grid(proposer="draft", max_k=2, slots=256, context=300)
    near, residual = table._fit._near("draft", 2, np.log2(every), 300)
    k, n = np.meshgrid(np.arange(3.0), every, indexing="ij")
    model = np.tensordot(
        table._fit.model[:FEATURES], model_terms(np.ones_like(k), 0 * k, k, n, np.full_like(k, 300)), 1
    )
    seconds, known = monotone(model * np.exp(residual / (near + 1.5))), near / (near + 1)
    assert few.seconds[:, 1:] == pytest.approx(seconds, rel=0.015)
    assert few.known[:, 1:] == pytest.approx(known, abs=0.1)
    assert few.seconds[:, 1:17] == pytest.approx(seconds[:, :16], rel=2e-3), "up to 16 rows nothing is interpolated"


def test_seconds_do_not_depend_on_slots() -> None:
    table = CostTable([*THREE, point(2, 90), point(0, 97)])
    wide = table.grid(proposer="draft", max_k=3, slots=256, context=300)
    for slots in (1, 3, 16, 17, 97):
        grid = table.grid(proposer="draft", max_k=3, slots=slots, context=300)
        assert grid.seconds.shape == (4, slots + 1)
        assert grid.seconds == pytest.approx(wide.seconds[:, : slots + 1], rel=0.01)


@pytest.mark.parametrize("change", [{"version": 1}, {"cells": [{}]}, {"cells": None}])
def test_invalid_json_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        CostTable.from_json({**CostTable(THREE).to_json(), **change})


def test_empty_table_raises_value_error() -> None:
    assert not CostTable([point(0, 4, rounds=0)])
    with pytest.raises(ValueError, match="empty"):
        seconds(CostTable(), 0, 1)
