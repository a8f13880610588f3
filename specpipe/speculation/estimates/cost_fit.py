"""Interpolation of a cost table: the model of round_model.py fitted to the cells, corrected by nearby residuals.

Shapes: C cells, K widest round, N slots, P row counts of the lattice.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.speculation.estimates.cost_cells import MEMORY, SHORT, CostCells, proposer_code
from specpipe.speculation.estimates.round_model import (
    FEATURES,
    KV,
    LOAD_SLOWDOWN,
    fit_model,
    model_terms,
    monotone,
    one_hot,
)

_REFIT_SHARE = 1 / 8  # new rounds over all rounds from which the model is fitted again
_CREDIBLE = 4.0  # rounds at which a cell has half its full weight in the fit
_DOUBT = 1.5  # nearby rounds at which half of the residual is applied
_MAX_RESIDUAL = 0.3  # log; the largest residual of a cell of one round, growing with √rounds
_NEAR = 0.05  # octaves, or K, over which the weight falls fastest
_EVERY = 16  # the lattice has every row count up to here, and beyond it as many per octave


class CostGrid(NamedTuple):
    """Rounds by K and running rows. Both arrays are [max K + 1, slots + 1]; the column of 0 rows equals that of 1."""

    seconds: Array
    """Seconds of a round, not decreasing in either axis."""
    known: Array
    """Share of the value that rests on nearby measurements rather than on the model, 0 to 1."""


class CostFit(NamedTuple):
    """The round model fitted to the cells of one table."""

    cells: CostCells
    model: Array
    """[10] coefficients."""
    fitted: float
    """Rounds measured before the model was fitted."""
    residual: Array
    """[C] log(measured / model)."""

    @classmethod
    def of(cls, cells: CostCells, before: CostFit | None = None) -> CostFit:
        """Fits the model. before: the fit of the table's predecessor, reused while few rounds are new."""
        rounds = cells.rounds
        if before is not None and before._is_current(cells):
            model, fitted = before.model, before.fitted
        else:
            model = fit_model(
                cells.relative, rounds / (rounds + _CREDIBLE), near=None if before is None else before.model
            )
            fitted = cells.measured
        found = cells.relative[:, :FEATURES] @ model[:FEATURES]
        in_a_job = 1 - model[LOAD_SLOWDOWN] * cells.relative[:, LOAD_SLOWDOWN]
        residual = np.log(in_a_job / np.maximum(found, 1e-12))
        credible = _MAX_RESIDUAL * np.sqrt(rounds)  # a single round may be an outlier
        return cls(cells, model, fitted, np.minimum(np.maximum(residual, -credible), credible))

    def _is_current(self, cells: CostCells) -> bool:
        """True if few rounds are new since the fit. Residuals correct what the model then lacks."""
        few = min(MEMORY, _REFIT_SHARE * cells.measured)
        return len(cells) == len(self.cells) and cells.measured - self.fitted < few

    def grid(self, proposer: ProposerName, max_k: int, slots: int, context: float) -> CostGrid:
        """Returns the seconds of a round for every K and row count at this context."""
        lattice, model = _lattice(slots), self.model[:FEATURES].copy()
        model[KV] *= context
        bare = (model @ _features(proposer, max_k, slots)).reshape(max_k + 1, len(lattice.rows))
        near, residual = self._near(proposer, max_k, lattice.rows, context)
        seconds = monotone(bare * np.exp(residual / (near + _DOUBT)))
        return CostGrid(lattice.spread(seconds), lattice.spread(near / (near + 1.0)))

    def _near(self, proposer: ProposerName, max_k: int, rows: Array, context: float) -> tuple[Array, Array]:
        """Returns two arrays [K + 1, P]: the weight of nearby cells, and the weighted sum of log(measured / model)."""
        cells = self.cells
        same = (cells.k == 0) | (cells.kind == proposer_code(proposer))
        length = _nearness(0.5 * (np.log2(context + SHORT) - cells.context))
        by_k = _by_k(max_k, max(max_k, int(cells.k.max())))[:, cells.k.astype(np.intp)] * (same * cells.rounds * length)
        both = np.concatenate([by_k, by_k * self.residual]) @ _nearness(rows - cells.rows[:, None])
        return both[: max_k + 1], both[max_k + 1 :]


class _Lattice(NamedTuple):
    """Row counts at which costs are computed; others are interpolated."""

    rows: Array
    """[P] log2 of the row counts."""
    below: npt.NDArray[np.intp]
    """[N + 1] index of the largest lattice point that is not above."""
    beyond: Array
    """[N + 1] fraction of the way to the next lattice point, 0 to 1."""

    def spread(self, values: Array) -> Array:
        """Interpolates values [..., P] linearly to [..., N + 1]."""
        steps = np.diff(values, append=values[..., -1:])
        return np.asarray(values.take(self.below, axis=-1) + steps.take(self.below, axis=-1) * self.beyond)


@lru_cache(maxsize=16)
def _lattice(slots: int) -> _Lattice:
    """Returns the lattice of an engine with this many slots."""
    few = np.arange(1.0, min(slots, _EVERY) + 1)
    far = np.geomspace(_EVERY, max(slots, _EVERY), 1 + math.ceil(_EVERY * math.log2(max(slots, _EVERY) / _EVERY)))
    rows, every = np.concatenate([few, far[1:]]), np.maximum(np.arange(slots + 1.0), 1.0)
    below = np.searchsorted(rows, every, side="right") - 1
    width = np.diff(rows, append=np.inf)
    return _Lattice(np.log2(rows), below, (every - rows[below]) / width[below])


@lru_cache(maxsize=16)
def _features(proposer: ProposerName, max_k: int, slots: int) -> Array:
    """Returns the model terms [9, (K + 1)·P] of rounds whose rows have one token of context."""
    k, n = np.meshgrid(np.arange(max_k + 1.0), 2 ** _lattice(slots).rows, indexing="ij")
    draft, ngram = (np.full_like(k, one) for one in one_hot(proposer))
    return np.array(model_terms(draft, ngram, k, n, np.ones_like(k))).reshape(FEATURES, -1)


@lru_cache(maxsize=16)
def _by_k(max_k: int, widest: int) -> Array:
    """Returns the weights [K + 1, widest + 1] between every K and every measured K."""
    return _nearness(np.arange(max_k + 1.0)[:, None] - np.arange(widest + 1.0))


def _nearness(apart: Array) -> Array:
    """Returns weights by distance, in octaves of rows or context or in K: 1 at distance 0, 1/30 at 0.5."""
    apart = np.abs(apart)
    near = np.exp(-2 * apart)
    near /= apart / _NEAR + 1
    return near
