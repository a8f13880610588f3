"""Estimates of round costs: a Kalman filter over the logarithms of the prices in round_model.py.

    log seconds = log Σ price(term) · work(term) + noise

Every measurement moves the prices in proportion to their uncertainty. So a round that was timed once counts for little,
and a machine of another speed than the cache's moves all prices together.
Source: iterated extended Kalman filter; Jazwinski, Stochastic Processes and Filtering Theory (1970), chapter 8.

Shapes: T terms, K widest round, N slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.estimates.round_model import FIRST_WORK, TERMS, RoundWork, work_by_term

PRICE_SD, SPEED_SD = 1.5, 0.7
"""Standard deviations of the logarithms of prices before any measurement of this run: of each, and of all together.
An earlier run's machine may have been twice as slow, and its rounds of a kind the first of their shape."""
PRICE_DRIFT = 3e-4
"""Variance that the logarithm of each price gains in a round: prices follow the rows and context of the moment."""
ROUND_SD = 0.1
"""Standard deviation of the logarithm of a measurement, however many rounds: neighbours of a CPU slow all of them."""
SURPRISE = 2.0
"""Standard deviations from which a measurement is doubted: it is too long, or those before it were."""
AGREED = 0.3
"""Largest logarithm of measured over expected seconds that confirms an estimate: a first round may take ten times as
long, and is no reason to leave a proposer alone."""
_PASSES, _STEP, _CLOSE = 32, 1.0, 0.05  # linearisations of the model at most; largest change in each, and in the last
_VERSION = 6  # of the JSON values; others are refused
_START = PRICE_SD**2 * np.eye(len(TERMS)) + SPEED_SD**2


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class RoundCosts:
    """Seconds of a round by proposer, K, rows and context. Immutable; false before any measurement."""

    expert_share: float = 0.0
    """`RoundWork.expert_share` of the target."""
    rounds: float = 0.0
    """Rounds measured so far; those of an earlier run count as one."""
    timed: Mapping[ProposerName, float] = field(default_factory=dict)
    """`rounds` when a measurement last confirmed the estimate of a proposer, or of plain decoding ("none")."""
    log_prices: Array = field(default_factory=lambda: np.zeros(len(TERMS)))
    """[T] logarithms of the prices."""
    covariance: Array = field(default_factory=lambda: _START)
    """[T, T] of `log_prices`."""

    def __bool__(self) -> bool:
        return self.rounds > 0

    def with_points(self, points: Iterable[CostPoint]) -> RoundCosts:
        """Returns the costs with these rounds added, which count as measured at the same time."""
        points = [point for point in points if point.rounds > 0 and point.seconds > 0 and point.running > 0]
        if not points:
            return self
        works = [self._work(RoundWork.of(point)) for point in points]
        seconds = [math.log(point.seconds / point.rounds) for point in points]
        rounds = sum(point.rounds for point in points)
        start, known = self.log_prices, self._drifted(rounds)
        if not self:  # the first point sets the scale
            start = seconds[0] - math.log((works[0] / FIRST_WORK).sum()) - np.log(FIRST_WORK)
        near = start
        for _ in range(_PASSES):
            state, covariance = start, known
            for measured in zip(works, seconds, strict=True):
                state, covariance = _corrected(state, covariance, near, *measured)
            state = near + np.clip(state - near, -_STEP, _STEP)
            near, moved = state, float(np.abs(state - near).max())
            if moved < _CLOSE:
                break
        total = self.rounds + rounds
        timed = dict(self.timed)
        for point, work, measured_log in zip(points, works, seconds, strict=True):
            if self and abs(measured_log - _predict(start, work)[0]) < AGREED:
                timed[point.proposer] = total
        return replace(self, log_prices=near, covariance=covariance, rounds=total, timed=timed)

    def seconds(self, work: RoundWork) -> float:
        """Returns the seconds of one round."""
        return math.exp(_predict(self.log_prices, self._work(work))[0])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """Returns the seconds of a round, [max_k + 1, slots + 1] by K and rows; the column of 0 rows equals that of 1.

        context: tokens of a row. Raises ValueError before any measurement.
        """
        if not self:
            raise ValueError("no round was measured; expected at least one cost point")
        k, rows = np.meshgrid(np.arange(max_k + 1.0), np.maximum(np.arange(slots + 1.0), 1.0), indexing="ij")
        return np.asarray(
            np.tensordot(np.exp(self.log_prices), self._work(RoundWork(proposer, k, rows, context * rows)), 1)
        )

    def shares(self, *, proposer: ProposerName, max_k: int, rows: float, context: float) -> Array:
        """Returns [T, max_k + 1]: the share of each term in the seconds of a round, by K. context: tokens of a row."""
        k = np.arange(max_k + 1.0)
        work = self._work(RoundWork(proposer, k, np.full_like(k, rows), np.full_like(k, rows * context)))
        parts = np.exp(self.log_prices)[:, None] * work
        return np.asarray(parts / parts.sum(axis=0))

    def sd(self, weights: Array) -> Array:
        """Returns [...]: standard deviations of weighted sums of log prices. weights: [T, ...]."""
        return np.asarray(np.sqrt(np.einsum("t...,tu,u...->...", weights, self.covariance, weights)))

    def _drifted(self, rounds: float) -> Array:
        """Returns the covariance after this many rounds. No price gets less certain than at first."""
        known = self.covariance + PRICE_DRIFT * rounds * np.eye(len(TERMS))
        shrink = np.sqrt(np.minimum(1.0, np.diagonal(_START) / np.diagonal(known)))
        return np.asarray(known * np.outer(shrink, shrink))

    def _work(self, work: RoundWork) -> Array:
        return work_by_term(work._replace(expert_share=self.expert_share))

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values: seconds by term."""
        prices = dict(zip(TERMS, np.exp(self.log_prices).tolist(), strict=True))
        return {"version": _VERSION, "rounds": self.rounds, "expert_share": self.expert_share, "seconds": prices}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoundCosts:
        """Reads the values of `to_json` as a prior: the prices, as uncertain as before any measurement.

        Raises ValueError, KeyError or TypeError for other values.
        """
        if data["version"] != _VERSION:
            raise ValueError(f"round costs of version {data['version']!r}; expected {_VERSION}")
        prices, share = np.array([float(data["seconds"][name]) for name in TERMS]), float(data["expert_share"])
        if not (np.isfinite(prices).all() and prices.min() > 0 and data["rounds"] > 0 and 0 <= share <= 1):
            raise ValueError("round costs with a number out of range; expected positive seconds and rounds")
        return cls(expert_share=share, rounds=1.0, log_prices=np.log(prices))


def _predict(log_prices: Array, work: Array) -> tuple[float, Array]:
    """Returns the logarithm of a round's seconds, and its derivatives by the prices' logarithms, [T]. work: [T]."""
    parts = np.exp(log_prices) * work
    total = float(parts.sum())
    return math.log(total), parts / total


def _corrected(state: Array, covariance: Array, near: Array, work: Array, seconds: float) -> tuple[Array, Array]:
    """Returns state and covariance after a measurement. seconds: the logarithm of a round's seconds.

    near: state around which the model is linear.
    """
    at, slope = _predict(near, work)
    error = seconds - at - float(slope @ (state - near))
    gain = covariance @ slope
    variance = float(slope @ gain) + ROUND_SD**2
    surprise = (error / SURPRISE) ** 2 - variance
    if surprise > 0:
        if error < 0:  # what was measured before was slowed down: part of the first uncertainty is back
            back = _START * (surprise / float(slope @ _START @ slope))
            covariance, gain = covariance + back, gain + back @ slope
        variance += surprise
    return state + gain * (error / variance), covariance - np.outer(gain, gain / variance)
