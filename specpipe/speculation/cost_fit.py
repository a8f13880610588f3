"""From the cells of a cost table to what any round takes: the model of round_model.py fitted to them, and what rounds
near by took beyond it.

Shapes: C cells, K widest round, N slots, P numbers of rows of the lattice.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.speculation.cost_cells import MEMORY, SHORT, CostCells, proposer_code
from specpipe.speculation.round_model import FEATURES, KV, LOAD_SLOWDOWN, fit_model, model_terms, monotone, one_hot

_LITTLE = 1 / 8  # of all rounds
_CREDIBLE = 4.0  # rounds that make a cell count half in the fit
_DOUBT = 1.5  # rounds near by that make the model and what was measured beyond it count alike
_ODD = 0.3  # log of how far a single round may lie from the model and be cap_s
_NEAR = 0.05  # octaves, or K, that are no distance
_EVERY = 16  # rows up to which what is near by is looked at for every number of them; beyond, so many an octave


class CostGrid(NamedTuple):
    """Rounds by K and rows, each [max K + 1, slots + 1]. Rows 0 read as 1."""

    seconds: Array
    """Rising in both."""
    known: Array
    """How much of it was measured near by, 0 to 1, rather than concluded."""


class CostFit(NamedTuple):
    """Of one table."""

    cells: CostCells
    model: Array
    """[10] coefficients."""
    fitted: float
    """Rounds that had been measured when the model was fitted."""
    residual: Array
    """[C] log(measured / model)."""

    @classmethod
    def of(cls, cells: CostCells, before: CostFit | None = None) -> CostFit:
        """before: that of the table which this one goes on from."""
        rounds = cells.rounds
        if before is not None and before._stands(cells):
            model, fitted = before.model, before.fitted
        else:
            model = fit_model(
                cells.relative, rounds / (rounds + _CREDIBLE), near=None if before is None else before.model
            )
            fitted = cells.measured
        found = cells.relative[:, :FEATURES] @ model[:FEATURES]
        in_a_job = 1 - model[LOAD_SLOWDOWN] * cells.relative[:, LOAD_SLOWDOWN]
        residual = np.log(in_a_job / np.maximum(found, 1e-12))
        credible = _ODD * np.sqrt(rounds)  # a single round may have met anything
        return cls(cells, model, fitted, np.minimum(np.maximum(residual, -credible), credible))

    def _stands(self, cells: CostCells) -> bool:
        """Whether so little was measured since the model was fitted that it will do: what it lacks, residuals have."""
        return len(cells) == len(self.cells) and cells.measured - self.fitted < min(MEMORY, _LITTLE * cells.measured)

    def grid(self, proposer: ProposerName, max_k: int, slots: int, context: float) -> CostGrid:
        lattice, model = _lattice(slots), self.model[:FEATURES].copy()
        model[KV] *= context
        bare = (model @ _features(proposer, max_k, slots)).reshape(max_k + 1, len(lattice.rows))
        near, residual = self._near(proposer, max_k, lattice.rows, context)
        seconds = monotone(bare * np.exp(residual / (near + _DOUBT)))
        return CostGrid(lattice.spread(seconds), lattice.spread(near / (near + 1.0)))

    def _near(self, proposer: ProposerName, max_k: int, rows: Array, context: float) -> tuple[Array, Array]:
        """→ [K + 1, P] each: weight of the cells near by, and with it log(measured / model)."""
        cells = self.cells
        same = (cells.k == 0) | (cells.kind == proposer_code(proposer))
        length = _nearness(0.5 * (np.log2(context + SHORT) - cells.context))
        by_k = _by_k(max_k, max(max_k, int(cells.k.max())))[:, cells.k.astype(np.intp)] * (same * cells.rounds * length)
        both = np.concatenate([by_k, by_k * self.residual]) @ _nearness(rows - cells.rows[:, None])
        return both[: max_k + 1], both[max_k + 1 :]


class _Lattice(NamedTuple):
    """Numbers of rows that stand for all others."""

    rows: Array
    """[P] log2."""
    below: npt.NDArray[np.intp]
    """[N + 1] the last of them that is not above."""
    beyond: Array
    """[N + 1] how far it is from there to the next, 0 to 1."""

    def spread(self, values: Array) -> Array:
        """[…, P] → [..., N + 1]: straight lines between them."""
        steps = np.diff(values, append=values[..., -1:])
        return np.asarray(values.take(self.below, axis=-1) + steps.take(self.below, axis=-1) * self.beyond)


@lru_cache(maxsize=16)
def _lattice(slots: int) -> _Lattice:
    few = np.arange(1.0, min(slots, _EVERY) + 1)
    far = np.geomspace(_EVERY, max(slots, _EVERY), 1 + math.ceil(_EVERY * math.log2(max(slots, _EVERY) / _EVERY)))
    rows, every = np.concatenate([few, far[1:]]), np.maximum(np.arange(slots + 1.0), 1.0)
    below = np.searchsorted(rows, every, side="right") - 1
    width = np.diff(rows, append=np.inf)
    return _Lattice(np.log2(rows), below, (every - rows[below]) / width[below])


@lru_cache(maxsize=16)
def _features(proposer: ProposerName, max_k: int, slots: int) -> Array:
    """→ [9, (K + 1)·P] of rounds whose rows are one token long."""
    k, n = np.meshgrid(np.arange(max_k + 1.0), 2 ** _lattice(slots).rows, indexing="ij")
    draft, ngram = (np.full_like(k, one) for one in one_hot(proposer))
    return np.array(model_terms(draft, ngram, k, n, np.ones_like(k))).reshape(FEATURES, -1)


@lru_cache(maxsize=16)
def _by_k(max_k: int, widest: int) -> Array:
    """→ [K + 1, widest + 1]"""
    return _nearness(np.arange(max_k + 1.0)[:, None] - np.arange(widest + 1.0))


def _nearness(apart: Array) -> Array:
    """Weight of cells so far apart, in octaves of rows or length or in K: 1 for the same, 1/30 half an octave off."""
    apart = np.abs(apart)
    near = np.exp(-2 * apart)
    near /= apart / _NEAR + 1
    return near
