"""Estimates of round costs: a Kalman filter over the logarithms of the prices in round_model.py.

    log seconds = load + log Σ price(term) · work(term) + noise

The load is common to all rounds; it comes and goes. Every measurement moves the state in proportion to its uncertainty.
So a round that was timed once counts for little, a busy neighbour moves the load and not the comparison of K, and a
machine of another speed than the cache's moves all prices together.
Source: extended Kalman filter; Jazwinski, Stochastic Processes and Filtering Theory (1970), chapter 8.

Shapes: S states (terms, then the load), K widest round, N slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, get_args

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.estimates.round_model import TERMS, RoundWork, work_by_term

PRICE_SD = 1.5
"""Standard deviation of the logarithm of a price before any measurement: hardware and models may be any."""
SPEED_SD = 3.0
"""The same of all prices together."""
CACHED_SD = 1.0
"""The same of each price, and of all together, of an earlier run: its machine may have been twice as slow."""
PRICE_DRIFT = 3e-4
"""Variance that the logarithm of a price gains in a round: prices follow the rows and context of the moment."""
LOAD_SD, LOAD_ROUNDS = 0.5, 200.0
"""Standard deviation of the load, and rounds in which it falls to 1/e: bursts of neighbours last seconds."""
ROUND_SD = 0.05
"""Standard deviation of the logarithm of one round's seconds, between those of a GPU and of a CPU."""
NGRAM_TIMES = 30.0
"""Times by which an n-gram look-up is expected to be cheaper than any other term."""
SURPRISE = 1.5
"""Standard deviations from which a measurement is doubted: it is longer than it should be, or all before it were."""
_STEP = 1.0  # largest change of the state in one pass
_PASSES = 4  # over the points of one call: the model is linear near the result of the pass before
_VERSION = 3  # of the JSON values; others are refused
_LOAD, _KV = len(TERMS), list(TERMS).index("kv")

_START = np.diag([PRICE_SD**2] * _LOAD + [0.0]) + np.outer([1.0] * _LOAD + [0.0], [SPEED_SD**2] * _LOAD + [0.0])


class RoundCosts:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` returns new costs."""

    def __init__(self, points: Iterable[CostPoint] = ()) -> None:
        self._state, self._covariance = np.zeros(_LOAD + 1), _START + np.diag([0.0] * _LOAD + [LOAD_SD**2])
        self.rounds = 0.0
        """Measured rounds so far; those of an earlier run count as one."""
        self.__dict__.update(self.with_points(points).__dict__)

    @classmethod
    def _of(cls, state: Array, covariance: Array, rounds: float) -> RoundCosts:
        made = cls()
        made._state, made._covariance, made.rounds = state, covariance, rounds
        return made

    def with_points(self, points: Iterable[CostPoint]) -> RoundCosts:
        """Returns the costs with these rounds added. All of them count as measured under the same load."""
        points = [point for point in points if point.rounds > 0 and point.seconds > 0 and point.running > 0]
        if not points:
            return self
        start = made = self if self else self._scaled(points[0])
        for _ in range(_PASSES):
            near, made = made, start._copy()
            made._pass_rounds(sum(point.rounds for point in points))
            for point in points:
                made._correct(point, near)
            made._state = near._state + np.clip(made._state - near._state, -_STEP, _STEP)
        return made

    def _copy(self) -> RoundCosts:
        return RoundCosts._of(self._state.copy(), self._covariance.copy(), self.rounds)

    def _scaled(self, point: CostPoint) -> RoundCosts:
        """Returns the first estimate: all terms have the same share of a large round, and this point is met."""
        made, work = self._copy(), RoundWork.of(point)
        made._state[:_LOAD] = -np.log(_work_of_all_terms())
        made._state[:_LOAD] += math.log(point.seconds / point.rounds) - made._predict(work)[0]
        return made

    def _pass_rounds(self, rounds: float) -> None:
        """Lets time pass: the load fades, and all prices become less certain, up to what they were at first."""
        covariance, kept = self._covariance, math.exp(-rounds / LOAD_ROUNDS)
        self._state[_LOAD] *= kept
        covariance[_LOAD] *= kept
        covariance[:, _LOAD] *= kept
        diagonal = np.einsum("ii->i", covariance)  # a view
        diagonal[:_LOAD] += PRICE_DRIFT * rounds
        diagonal[_LOAD] += (1 - kept * kept) * LOAD_SD**2
        shrink = np.minimum(1.0, math.hypot(PRICE_SD, SPEED_SD) / np.sqrt(diagonal))
        covariance *= np.outer(shrink, shrink)
        self.rounds += rounds

    def _correct(self, point: CostPoint, near: RoundCosts) -> None:
        """Corrects the state by measured rounds. near: costs around which the model is linear."""
        at, slope = near._predict(RoundWork.of(point))
        expected = at + float(slope @ (self._state - near._state))
        gain, error = self._covariance @ slope, math.log(point.seconds / point.rounds) - expected
        variance = float(slope @ gain) + ROUND_SD**2 / point.rounds
        surprise = (error / SURPRISE) ** 2 - variance
        if surprise > 0:
            if error < 0:  # what was measured before was slowed down: part of the first uncertainty is back
                back = _START * (surprise / float(slope @ _START @ slope))
                self._covariance += back
                gain += back @ slope
            variance += surprise
        self._state += gain * (error / variance)
        self._covariance -= np.outer(gain, gain / variance)

    def _predict(self, work: RoundWork) -> tuple[float, Array]:
        """Returns the logarithm of a round's seconds, and its derivatives by the state, [S]."""
        parts = np.exp(self._state[:_LOAD]) * work_by_term(work)
        total = float(parts.sum())
        return math.log(total) + float(self._state[_LOAD]), np.append(parts / total, 1.0)

    def __bool__(self) -> bool:
        """True if any round was measured."""
        return self.rounds > 0

    def price(self, term: str) -> float:
        """Returns the price of a term, in seconds."""
        return math.exp(self._state[list(TERMS).index(term)])

    def seconds(self, work: RoundWork) -> float:
        """Returns the seconds of one round under the present load."""
        return math.exp(self._predict(work)[0])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """Returns the seconds of a round, [max_k + 1, slots + 1] by K and rows; the column of 0 rows equals that of 1.

        context: tokens of a row. Raises ValueError before any measurement.
        """
        if not self:
            raise ValueError("no round was measured; expected at least one cost point")
        rows, work = _grid_work(proposer, max_k, slots)
        prices = np.exp(self._state[:_LOAD])
        seconds: Array = np.tensordot(prices, work, 1) + prices[_KV] * context * rows
        return math.exp(self._state[_LOAD]) * seconds

    def as_prior(self) -> RoundCosts:
        """Returns costs that another run can start from: the prices, uncertain, without the load."""
        own, state = np.diagonal(self._covariance)[:_LOAD], np.append(self._state[:_LOAD], 0.0)
        covariance = np.diag([*np.minimum(own + CACHED_SD**2, PRICE_SD**2), LOAD_SD**2])
        covariance[:_LOAD, :_LOAD] += CACHED_SD**2
        return RoundCosts._of(state, covariance, 1.0) if self else self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoundCosts) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # equality by content, so not hashable

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values: seconds by term, and the standard deviations of their logarithms."""
        prices, variances = np.exp(self._state[:_LOAD]).tolist(), np.diagonal(self._covariance).tolist()
        terms = {name: {"seconds": prices[i], "sd": math.sqrt(variances[i])} for i, name in enumerate(TERMS)}
        return {"version": _VERSION, "rounds": self.rounds, "terms": terms}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoundCosts:
        """Reads the values of `to_json`. Raises ValueError, KeyError or TypeError for others."""
        if data["version"] != _VERSION:
            raise ValueError(f"round costs of version {data['version']!r}; expected {_VERSION}")
        values = [(float(data["terms"][name]["seconds"]), float(data["terms"][name]["sd"])) for name in TERMS]
        numbers, rounds = np.array([*values, (1.0, LOAD_SD)]), float(data["rounds"])
        if not np.isfinite(numbers).all() or numbers.min() <= 0 or not 0 < rounds < math.inf:
            raise ValueError("round costs with a number that is not positive and finite")
        return cls._of(np.log(numbers[:, 0]), np.diag(numbers[:, 1] ** 2), rounds)


def _work_of_all_terms() -> Array:
    """Returns the work by term of rounds of 128 rows of 256 tokens with 2 drafts, of each proposer its own."""
    names: tuple[ProposerName, ...] = get_args(ProposerName)
    works = np.max([work_by_term(RoundWork(name, 2, 128, 128 * 256)) for name in names], axis=0)
    return np.asarray(works * [NGRAM_TIMES if name.startswith("ngram") else 1.0 for name in TERMS])


@lru_cache(maxsize=16)
def _grid_work(proposer: ProposerName, max_k: int, slots: int) -> tuple[Array, Array]:
    """Returns the rows, [K + 1, N + 1], and the work by term without KV, [terms, K + 1, N + 1]."""
    k, rows = np.meshgrid(np.arange(max_k + 1.0), np.maximum(np.arange(slots + 1.0), 1.0), indexing="ij")
    return rows, work_by_term(RoundWork(proposer, k, rows, np.zeros_like(rows)))
