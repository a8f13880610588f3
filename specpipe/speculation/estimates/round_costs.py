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
PRICE_DRIFT = 1e-4
"""Variance that the logarithm of each price gains in a round: a long run follows a machine that changes."""
ROUND_SD = 0.05
"""Standard deviation of the logarithm of a measurement, however many rounds: neighbours slow all of them."""
SURPRISE = 2.0
"""Standard deviations from which a measurement is doubted: it is too long, or those before it were."""
AGREED = 0.3
"""Largest logarithm of measured over expected seconds that confirms an estimate: first rounds may take ten times as
long."""
_PASSES, _STEP, _SETTLED = 8, 1.0, 1e-3  # linearisations of the model, the largest change in each, and in the last one
_VERSION = 6  # of the JSON values; others are refused
_START = PRICE_SD**2 * np.eye(len(TERMS)) + SPEED_SD**2


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class RoundCosts:
    """Seconds of a round by proposer, K, rows and context. Immutable; false before any measurement."""

    expert_share: float = 0.0
    """`RoundWork.expert_share` of the target."""
    rounds: float = 0.0
    """Rounds measured so far; those of an earlier run count as one."""
    confirmed: Mapping[ProposerName, float] = field(default_factory=dict)
    """`rounds` when a measurement was last near the estimate of a proposer, or of plain decoding ("none")."""
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
        works = [self._work(RoundWork(p.proposer, p.k, p.running, p.running * p.context)) for p in points]
        seconds = [math.log(point.seconds / point.rounds) for point in points]
        rounds = sum(point.rounds for point in points)
        start, known = self.log_prices, self.covariance + PRICE_DRIFT * rounds * np.eye(len(TERMS))
        if not self:  # the first point sets the scale
            start = seconds[0] - math.log((works[0] / FIRST_WORK).sum()) - np.log(FIRST_WORK)
        near = start
        for _ in range(_PASSES):
            state, covariance = start, known
            for measured in zip(works, seconds, strict=True):
                state, covariance = _corrected(state, covariance, near, *measured)
            change = np.clip(state - near, -_STEP, _STEP)
            near = near + change
            if np.abs(change).max() < _SETTLED:
                break
        total, confirmed = self.rounds + rounds, dict(self.confirmed)
        for point, work, measured_log in zip(points, works, seconds, strict=True):
            if self and abs(measured_log - _predict(start, work)[0]) < AGREED:
                confirmed[point.proposer] = total
        return replace(self, log_prices=near, covariance=covariance, rounds=total, confirmed=confirmed)

    def seconds(self, work: RoundWork) -> Array:
        """Returns the seconds of one round, or of an array of rounds."""
        return np.asarray(np.tensordot(np.exp(self.log_prices), self._work(work), 1))

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """Returns the seconds of a round, [max_k + 1, slots + 1] by K and rows; the column of 0 rows equals that of 1.

        context: tokens of a row. Raises ValueError before any measurement.
        """
        if not self:
            raise ValueError("no round was measured; expected at least one cost point")
        k, rows = np.arange(max_k + 1.0)[:, None], np.maximum(np.arange(slots + 1.0), 1.0)
        return self.seconds(RoundWork(proposer, k, rows, context * rows))

    def ratio_sd(self, work: RoundWork, other: RoundWork) -> Array:
        """Returns the standard deviation of the logarithm of the seconds of `work`, [...], over those of `other`."""
        parts, others = ((np.exp(self.log_prices) * self._work(one).T).T for one in (work, other))
        slope = (parts / parts.sum(axis=0)).T - others / others.sum()
        return np.asarray(np.sqrt(np.einsum("...t,tu,...u->...", slope, self.covariance, slope)))

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
