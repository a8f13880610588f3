"""Cells of a cost table: measured rounds grouped by proposer, K, rows and context.

Shapes: C cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.estimates.round_model import FEATURES, model_terms, one_hot, slowdown_share

MEMORY = 64.0
"""Largest weight of a cell's history, in rounds. A cell follows drift within about as many."""
SHORT = 64.0
"""Tokens added to the context before its logarithm: differences below this have no effect on a round."""
PROFILED = 2.0
"""Largest weight of a profiled cell, in rounds: the profile is timed without the load of a job."""
_COLUMNS = FEATURES + 1  # of the round model
_OCTAVE = 4  # cells per doubling of the rows


class CellKey(NamedTuple):
    """Quantised position of a cell."""

    proposer: ProposerName
    k: int
    rows: int
    """Quarter octaves: round(4 · log2 of the rows)."""
    context: int
    """Octaves of tokens."""
    profiled: bool = False
    """True for rounds of the start-up profile."""


class CostCell(NamedTuple):
    """Weighted means over the rounds of a cell."""

    running: float
    """Rows."""
    context: float
    """Tokens a row."""
    rounds: float
    """Weight."""
    seconds: float
    """Seconds of one round."""


class CostCells:
    """Cells by key, with their model terms as one array that is updated row by row. Immutable."""

    def __init__(self) -> None:
        self._places: dict[CellKey, int] = {}
        self._cells: list[CostCell] = []
        self._numbers = np.empty((0, _COLUMNS + 5))
        self.measured = 0.0
        """Rounds added so far, over all cells."""

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[tuple[CellKey, CostCell]]:
        return zip(self._places, self._cells, strict=True)

    def with_points(self, points: Iterable[CostPoint], *, profiled: bool = False) -> CostCells:
        """Returns the cells with `points` merged in; each cell keeps at most MEMORY rounds of history."""
        now: dict[CellKey, CostCell] = {}
        measured = self.measured
        for point in points:
            if point.rounds < 1 or point.seconds <= 0 or point.running < 1:
                continue
            context = max(0.0, point.context)
            key = cell_key(point.proposer, point.k, point.running, context, profiled=profiled)
            new = CostCell(float(point.running), context, float(point.rounds), point.seconds / point.rounds)
            old = now.get(key) or self._find(key)
            now[key] = new if old is None else _mean(old, new)
            measured += point.rounds
        other = self.replaced(now)
        other.measured = measured
        return other

    def replaced(self, now: dict[CellKey, CostCell]) -> CostCells:
        """Returns a copy in which the cells of `now` are set and the others stay."""
        other = object.__new__(CostCells)
        other._places, other._cells, other.measured = dict(self._places), self._cells.copy(), self.measured
        added = [key for key in now if key not in self._places]
        for key in added:
            other._places[key] = len(other._cells)
            other._cells.append(now[key])
        other._numbers = np.empty((len(other._cells), self._numbers.shape[1]))
        other._numbers[: len(self)] = self._numbers
        for key, cell in now.items():
            place = other._places[key]
            other._cells[place], other._numbers[place] = cell, _numbers(key, cell)
        return other

    def _find(self, key: CellKey) -> CostCell | None:
        place = self._places.get(key)
        return None if place is None else self._cells[place]

    @property
    def relative(self) -> Array:
        """[C, 10] inputs of `fit_model`: model terms / seconds, and −`slowdown_share` of profiled cells."""
        return self._numbers[:, :_COLUMNS]

    @property
    def rounds(self) -> Array:
        """[C] weights in rounds, at most MEMORY."""
        return self._numbers[:, _COLUMNS]

    @property
    def rows(self) -> Array:
        """[C] log2 of the rows."""
        return self._numbers[:, _COLUMNS + 1]

    @property
    def context(self) -> Array:
        """[C] log2 of the context + SHORT."""
        return self._numbers[:, _COLUMNS + 2]

    @property
    def k(self) -> Array:
        """[C] draft tokens."""
        return self._numbers[:, _COLUMNS + 3]

    @property
    def kind(self) -> Array:
        """[C] proposers, as `proposer_code` numbers them."""
        return self._numbers[:, _COLUMNS + 4]


def proposer_code(proposer: ProposerName) -> float:
    """Returns 1 for "draft", 2 for "ngram", 0 for "none"."""
    draft, ngram = one_hot(proposer)
    return draft + 2 * ngram


def cell_key(proposer: ProposerName, k: int, running: float, context: float, *, profiled: bool = False) -> CellKey:
    """Returns the key of the cell that holds such rounds."""
    rows, octave = round(_OCTAVE * math.log2(running)), round(math.log2(context + SHORT))
    return CellKey(proposer if k else "none", k, rows, octave, profiled)


def _numbers(key: CellKey, cell: CostCell) -> tuple[float, ...]:
    """Returns a cell's row of the array: 10 values for the fit, then weight, log2 rows, log2 context, K, proposer."""
    k, n, seconds = float(key.k), cell.running, cell.seconds
    relative = (term / seconds for term in model_terms(*one_hot(key.proposer), k, n, cell.context))
    most, shown = (PROFILED, -slowdown_share(k, n)) if key.profiled else (MEMORY, 0.0)
    return (
        *relative,
        shown,
        min(cell.rounds, most),
        math.log2(n),
        math.log2(cell.context + SHORT),
        k,
        proposer_code(key.proposer),
    )


def _mean(old: CostCell, new: CostCell) -> CostCell:
    """Returns the mean of both, with the old cell's weight limited to MEMORY."""
    past = min(old.rounds, MEMORY)
    share = new.rounds / (past + new.rounds)
    return CostCell(
        running=old.running + share * (new.running - old.running),
        context=old.context + share * (new.context - old.context),
        rounds=past + new.rounds,
        seconds=old.seconds + share * (new.seconds - old.seconds),
    )
