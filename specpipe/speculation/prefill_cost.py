"""What a prefill by the draft model takes: something a forward, for launches and weights, and something a token."""

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
"""Tokens that take as long as reading the weights does: what a forward of one size alone is taken to be made of."""
_MEMORY = 32.0  # forwards that the past of a cell counts for at most
_CREDIBLE = 2.0  # forwards that make a cell count half
_ODD = 2.0  # times what is expected that a forward is cap_s: it may have met a compiler
_RIDGE = 1e-4


class PrefillPrice(NamedTuple):
    """Seconds."""

    forward: float
    token: float

    def seconds(self, tokens: Amount, forwards: Amount) -> Amount:
        """Of so many forwards with so many tokens together."""
        return tokens * self.token + forwards * self.forward


class _Cell(NamedTuple):
    """Forwards of about the same size."""

    forwards: float
    tokens: float
    """Of one."""
    seconds: float
    """Of one."""


class PrefillCost:
    """What was measured, by size. Immutable: `with_points` makes a new one."""

    def __init__(self, points: Iterable[PrefillPoint] = ()) -> None:
        self._cells: dict[int, _Cell] = {}
        """By octave of the tokens."""
        for point in points:
            self._add(point, cap_s=math.inf)

    def with_points(self, points: Iterable[PrefillPoint]) -> PrefillCost:
        """What was known and what was measured since; the past fades."""
        other = PrefillCost()
        other._cells = dict(self._cells)
        for point in points:
            expected = self.price.seconds(float(point.tokens), float(point.forwards)) if self else math.inf
            other._add(point, cap_s=_ODD * expected)
        return other

    def _add(self, point: PrefillPoint, *, cap_s: float) -> None:
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
        """Whether anything was measured."""
        return bool(self._cells)

    @cached_property
    def price(self) -> PrefillPrice:
        """Least squares of relative errors over the cells, both prices 0 or more.

        A small ridge shares out what forwards of one size cannot tell apart: what large ones take goes to tokens.
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
        return [cell._asdict() for _, cell in sorted(self._cells.items())]

    @classmethod
    def from_json(cls, data: Iterable[dict[str, Any]]) -> PrefillCost:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not write."""
        made = cls()
        for entry in data:
            cell = _Cell(*(float(entry[name]) for name in _Cell._fields))
            if not all(np.isfinite(cell)) or min(cell) <= 0:
                raise ValueError(f"cost of prefills {entry!r}; expected positive numbers")
            made._cells[size_octave(cell.tokens)] = cell
        return made


def size_octave(tokens: float) -> int:
    """Octave: forwards of one take about as long as each other."""
    return round(math.log2(max(1.0, tokens)))
