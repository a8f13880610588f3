"""Cost of prefills by the draft model: a price per forward (launches, weights) and a price per token."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from specpipe.arrays import Array
from specpipe.core import PrefillPoint

Amount = TypeVar("Amount", float, Array)
TOKENS_OF_A_FORWARD = 256.0
"""Tokens whose arithmetic is assumed to take as long as reading the weights, where all forwards have one size."""
_MEMORY = 32.0  # largest weight of a cell's history, in forwards
_CREDIBLE = 2.0  # forwards at which a cell has half its full weight
_OUTLIER = 2.0  # times the expected seconds at which a forward is clipped: it may include compilation
_RIDGE = 1e-4  # relative to the squared terms: separates prices that the points cannot, changes others little


class PrefillPrice(NamedTuple):
    """Prices of a prefill, in seconds."""

    forward: float
    token: float

    def seconds(self, tokens: Amount, forwards: Amount) -> Amount:
        """Returns the seconds of these forwards with `tokens` tokens in all."""
        return tokens * self.token + forwards * self.forward


class _Cell(NamedTuple):
    """Mean over forwards of about the same size."""

    forwards: float
    """Weight."""
    tokens: float
    """Tokens of one forward."""
    seconds: float
    """Seconds of one forward."""


class PrefillCost:
    """Measured prefills by size. Immutable: `with_points` returns a new one."""

    def __init__(self, points: Iterable[PrefillPoint] = ()) -> None:
        self._cells: dict[int, _Cell] = {}
        """By octave of tokens."""
        for point in points:
            self._add(point, cap_s=math.inf)

    def with_points(self, points: Iterable[PrefillPoint]) -> PrefillCost:
        """Returns the cost with these prefills merged in; history decays."""
        other = PrefillCost()
        other._cells = dict(self._cells)
        for point in points:
            expected = self.price.seconds(float(point.tokens), float(point.forwards)) if self else math.inf
            other._add(point, cap_s=_OUTLIER * expected)
        return other

    def _add(self, point: PrefillPoint, *, cap_s: float) -> None:
        """Merges one point in place, its seconds limited to `cap_s`."""
        if point.forwards < 1 or point.tokens < 1 or point.seconds <= 0:
            return
        tokens, seconds = point.tokens / point.forwards, min(point.seconds, cap_s) / point.forwards
        octave = size_octave(tokens)
        old = self._cells.get(octave, _Cell(0.0, 0.0, 0.0))
        past = min(old.forwards, _MEMORY)
        share = point.forwards / (past + point.forwards)
        self._cells[octave] = _Cell(
            past + point.forwards,
            old.tokens + share * (tokens - old.tokens),
            old.seconds + share * (seconds - old.seconds),
        )

    def __bool__(self) -> bool:
        """True if any prefill was measured."""
        return bool(self._cells)

    @cached_property
    def price(self) -> PrefillPrice:
        """Prices of 0 or more that minimise the squared relative errors over the cells.

        If all forwards have one size, the two prices cannot be separated. A small ridge then assigns the seconds of
        large forwards to tokens.
        """
        xx = xy = yy = x1 = y1 = 0.0
        for forwards, tokens, seconds in self._cells.values():
            x, y, weight = TOKENS_OF_A_FORWARD / seconds, tokens / seconds, forwards / (forwards + _CREDIBLE)
            xx, xy, yy = xx + weight * x * x, xy + weight * x * y, yy + weight * y * y
            x1, y1 = x1 + weight * x, y1 + weight * y
        ridge = _RIDGE * (xx + yy)
        xx, yy = xx + ridge, yy + ridge
        fixed, slope = x1 * yy - y1 * xy, y1 * xx - x1 * xy  # over xx·yy − xy²
        if fixed < 0:
            return PrefillPrice(0.0, y1 / yy)
        if slope < 0:
            return PrefillPrice(TOKENS_OF_A_FORWARD * x1 / xx, 0.0)
        over = xx * yy - xy * xy
        return PrefillPrice(TOKENS_OF_A_FORWARD * fixed / over, slope / over)

    def to_json(self) -> list[dict[str, float]]:
        """Returns JSON values for the cost cache; the inverse of `from_json`."""
        return [cell._asdict() for _, cell in sorted(self._cells.items())]

    @classmethod
    def from_json(cls, data: Iterable[dict[str, Any]]) -> PrefillCost:
        """Reads the values of `to_json`. Raises ValueError, KeyError or TypeError for others."""
        made = cls()
        for entry in data:
            cell = _Cell(*(float(entry[name]) for name in _Cell._fields))
            if not all(np.isfinite(cell)) or min(cell) <= 0:
                raise ValueError(f"cost of prefills {entry!r}; expected positive numbers")
            made._cells[size_octave(cell.tokens)] = cell
        return made


def size_octave(tokens: float) -> int:
    """Returns the octave of a number of tokens; forwards of one octave share a cell."""
    return round(math.log2(max(1.0, tokens)))
