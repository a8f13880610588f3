"""Estimates of round costs: a Kalman filter over the logarithms of the prices in round_model.py.

    log seconds = log Σ price(term) · work(term) + noise

Every measurement moves the prices in proportion to their uncertainty. So a round that was timed once counts for little,
and a machine of another speed than the cache's moves all prices together.
Source: iterated extended Kalman filter; Jazwinski, Stochastic Processes and Filtering Theory (1970), chapter 8.

Shapes: T terms, K widest round, N slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.estimates.round_model import FIRST_WORK, TERMS, RoundWork, work_by_term

PRICE_SD, SPEED_SD = 1.5, 0.7
"""Standard deviations of the logarithms of prices before any measurement: of each, and of all together. Prices of an
earlier run are off by SPEED_SD, each and together: its machine may have been twice as slow."""
PRICE_DRIFT = 3e-4
"""Variance that the logarithm of a price gains in a round: prices follow the rows and context of the moment."""
ROUND_SD = 0.1
"""Standard deviation of the logarithm of one round's seconds: 0.01 on an H200, 0.2 on a busy CPU."""
SURPRISE = 2.0
"""Standard deviations from which a measurement is doubted: it is too long, or those before it were."""
_STEP, _PASSES = 1.0, 8  # largest change of a state in a pass, and passes at most, until the model is linear enough
_CLOSE = 0.05  # largest change of a state in the last pass
_VERSION = 4  # of the JSON values; others are refused
_KV, _SIZE = list(TERMS).index("kv"), len(TERMS)
_START = PRICE_SD**2 * np.eye(_SIZE) + SPEED_SD**2


class RoundCosts:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` returns new costs."""

    def __init__(self, points: Iterable[CostPoint] = ()) -> None:
        made = self._of(np.zeros(_SIZE), _START, 0.0).with_points(points)
        self._state: Array = made._state
        """[T] logarithms of the prices."""
        self._covariance: Array = made._covariance
        """[T, T] of the state."""
        self.rounds: float = made.rounds
        """Measured rounds so far; those of an earlier run count as one."""

    @classmethod
    def _of(cls, state: Array, covariance: Array, rounds: float) -> RoundCosts:
        made = cls.__new__(cls)
        made._state, made._covariance, made.rounds = state, covariance, rounds
        return made

    def with_points(self, points: Iterable[CostPoint]) -> RoundCosts:
        """Returns the costs with these rounds added, which count as measured at the same time."""
        points = [point for point in points if point.rounds > 0 and point.seconds > 0 and point.running > 0]
        if not points:
            return self
        rounds = sum(point.rounds for point in points)
        works = [work_by_term(RoundWork.of(point)) for point in points]
        seconds = [math.log(point.seconds / point.rounds) for point in points]
        noise = [ROUND_SD**2 / point.rounds for point in points]
        start, known = self._state, self._covariance + PRICE_DRIFT * rounds * np.eye(_SIZE)
        shrink = np.sqrt(np.minimum(1.0, np.diagonal(_START) / np.diagonal(known)))
        known *= np.outer(shrink, shrink)  # no less certain than at first
        if not self:  # the first point sets the scale
            start = -np.log(FIRST_WORK)
            start += seconds[0] - _predict(start, works[0])[0]
        near = start
        for _ in range(_PASSES):
            state, covariance = start, known
            for measured in zip(works, seconds, noise, strict=True):
                state, covariance = _corrected(state, covariance, near, *measured)
            state = near + np.clip(state - near, -_STEP, _STEP)
            near, moved = state, float(np.abs(state - near).max())
            if moved < _CLOSE:
                break
        return self._of(near, covariance, self.rounds + rounds)

    def __bool__(self) -> bool:
        """True if any round was measured."""
        return self.rounds > 0

    def price(self, term: str) -> float:
        """Returns the price of a term, in seconds."""
        return math.exp(self._state[list(TERMS).index(term)])

    def seconds(self, work: RoundWork) -> float:
        """Returns the seconds of one round."""
        return math.exp(_predict(self._state, work_by_term(work))[0])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """Returns the seconds of a round, [max_k + 1, slots + 1] by K and rows; the column of 0 rows equals that of 1.

        context: tokens of a row. Raises ValueError before any measurement.
        """
        if not self:
            raise ValueError("no round was measured; expected at least one cost point")
        rows, work = _grid_work(proposer, max_k, slots)
        prices = np.exp(self._state)
        return np.asarray(np.tensordot(prices, work, 1) + prices[_KV] * context * rows)

    def as_prior(self) -> RoundCosts:
        """Returns costs that another run can start from: the prices, uncertain."""
        own = np.minimum(np.diagonal(self._covariance) + SPEED_SD**2, PRICE_SD**2)
        return self._of(self._state, np.diag(own) + SPEED_SD**2, 1.0) if self else self

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values: seconds by term, and the standard deviations of their logarithms."""
        prices, sds = np.exp(self._state).tolist(), np.sqrt(np.diagonal(self._covariance)).tolist()
        terms = {name: {"seconds": prices[i], "sd": sds[i]} for i, name in enumerate(TERMS)}
        return {"version": _VERSION, "rounds": self.rounds, "terms": terms}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoundCosts:
        """Reads the values of `to_json`. Raises ValueError, KeyError or TypeError for others."""
        if data["version"] != _VERSION:
            raise ValueError(f"round costs of version {data['version']!r}; expected {_VERSION}")
        numbers = np.array([[float(data["terms"][name][key]) for key in ("seconds", "sd")] for name in TERMS])
        rounds = float(data["rounds"])
        if not np.isfinite(numbers).all() or numbers.min() <= 0 or not 0 < rounds < math.inf:
            raise ValueError("round costs with a number that is not positive and finite")
        return cls._of(np.log(numbers[:, 0]), np.diag(numbers[:, 1] ** 2), rounds)


def _predict(state: Array, work: Array) -> tuple[float, Array]:
    """Returns the logarithm of a round's seconds, and its derivatives by the state, [T]. work [T]: by term."""
    parts = np.exp(state) * work
    total = float(parts.sum())
    return math.log(total), parts / total


def _corrected(
    state: Array, covariance: Array, near: Array, work: Array, seconds: float, noise: float
) -> tuple[Array, Array]:
    """Returns state and covariance after a measurement: the logarithm of a round's seconds, and its variance.

    near: state around which the model is linear.
    """
    at, slope = _predict(near, work)
    error = seconds - at - float(slope @ (state - near))
    gain = covariance @ slope
    variance = float(slope @ gain) + noise
    surprise = (error / SURPRISE) ** 2 - variance
    if surprise > 0:
        if error < 0:  # what was measured before was slowed down: part of the first uncertainty is back
            back = _START * (surprise / float(slope @ _START @ slope))
            covariance, gain = covariance + back, gain + back @ slope
        variance += surprise
    return state + gain * (error / variance), covariance - np.outer(gain, gain / variance)


@lru_cache(maxsize=16)
def _grid_work(proposer: ProposerName, max_k: int, slots: int) -> tuple[Array, Array]:
    """Returns the rows, [K + 1, N + 1], and the work by term without KV, [T, K + 1, N + 1]."""
    k, rows = np.meshgrid(np.arange(max_k + 1.0), np.maximum(np.arange(slots + 1.0), 1.0), indexing="ij")
    return rows, work_by_term(RoundWork(proposer, k, rows, np.zeros_like(rows)))
