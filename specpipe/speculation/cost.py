"""What rounds take: the model of round_model.py fitted to what was measured, and what real rounds took beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.cost_cells import MEMORY, SHORT, Cell, Key, key_of, mean
from specpipe.speculation.round_model import DRAFT, Proposers, features, fit, rising

Array = npt.NDArray[np.float64]
_CREDIBLE = 4.0  # rounds that make a cell count half in the fit
_DOUBT = 1.5  # rounds near by that make the model and what was measured beyond it count alike
_ODD = 0.3  # log of how far a single round may lie from the model and be believed
_NEAR = 0.05  # octaves, or K, that are no distance
_MANY = 256.0  # tokens that a draft step takes in the time of one


class _Fitted(NamedTuple):
    """C cells."""

    model: Array
    """The coefficients."""
    drafts: Proposers
    """[C] each."""
    k: Array
    rows: Array
    """log2."""
    context: Array
    """log2."""
    rounds: Array
    residual: Array
    """log(measured / model)."""


class Grid(NamedTuple):
    """Rounds by K and rows, each [max K + 1, slots + 1]. Rows 0 read as 1."""

    seconds: Array
    """Rising in both."""
    known: Array
    """How much of it was measured near by, 0 to 1, rather than concluded."""


class CostTable:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` makes a new one."""

    def __init__(self, points: Iterable[CostPoint] = (), *, draft_token_s: float | None = None) -> None:
        """`draft_token_s`: seconds that the draft model needs to prefill one token, where that was measured."""
        self._cells: dict[Key, Cell] = {}
        self._draft_token_s = draft_token_s
        self._grids: dict[tuple[ProposerName, int, int, float], Grid] = {}
        self._rows_near: dict[int, Array] = {}
        self._last_model: Array | None = None
        """Of the table that this one goes on from: where the fit begins."""
        for point in points:
            self._add(point)

    def _add(self, point: CostPoint) -> None:
        if point.rounds < 1 or point.seconds <= 0 or point.running < 1:
            return
        context = max(0.0, point.context)
        key = key_of(point.proposer, point.k, point.running, context)
        old = self._cells.get(key)
        new = Cell(float(point.running), context, float(point.rounds), point.seconds / point.rounds)
        self._cells[key] = new if old is None else mean(old, new)

    def with_points(self, points: Iterable[CostPoint]) -> CostTable:
        """What was known and what was measured since; the past of a cell fades."""
        table = self._copy(self._draft_token_s)
        for point in points:
            table._add(point)
        return table

    def with_prefill(self, *, tokens: int, seconds: float) -> CostTable:
        """The draft model has prefilled `tokens` in `seconds`."""
        if tokens < 1:
            return self
        now = seconds / tokens
        known = now if self._draft_token_s is None else 0.5 * (self._draft_token_s + now)
        return self._copy(known)

    def _copy(self, draft_token_s: float | None) -> CostTable:
        table = CostTable(draft_token_s=draft_token_s)
        table._cells = dict(self._cells)
        table._last_model = self.__dict__["_fitted"].model if "_fitted" in self.__dict__ else self._last_model
        return table

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # equal by content: no key of a dict

    @property
    def draft_token_s(self) -> float:
        """Seconds to prefill one token with the draft model: measured, or from the weights that a draft step reads."""
        if self._draft_token_s is not None:
            return self._draft_token_s
        return float(self._fitted.model[DRAFT]) / _MANY

    def seconds(self, *, proposer: ProposerName, k: int, running: int, context: float) -> float:
        """One round. Raises ValueError for a table that knows nothing."""
        widest = max([k, *(key.k for key in self._cells)])
        fullest = max([running, *(round(cell.running) for cell in self._cells.values())])
        grid = self.grid(proposer=proposer, max_k=widest, slots=fullest, context=context)
        return float(grid.seconds[k, running])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Grid:
        """Seconds of a round for every K and number of rows. Raises ValueError for a table that knows nothing."""
        if not self._cells:
            raise ValueError("the cost table is empty; expected at least one measured point")
        asked = (proposer, max_k, slots, context)
        if asked not in self._grids:
            self._grids[asked] = self._grid(*asked)
        return self._grids[asked]

    def _grid(self, proposer: ProposerName, max_k: int, slots: int, context: float) -> Grid:
        k, n = _mesh(max_k, slots)
        model = features(_one_hot(proposer), k, n, np.full_like(k, context)) @ self._fitted.model
        near, residual = self._near(proposer, max_k, slots, context)
        return Grid(rising(model * np.exp(residual / (near + _DOUBT))), near / (near + 1.0))

    @cached_property
    def _fitted(self) -> _Fitted:
        cells = np.array(list(self._cells.values()))
        n, context, rounds, seconds = cells.T
        k = np.array([float(key.k) for key in self._cells])
        who = [key.proposer for key in self._cells]
        drafts = Proposers(*(np.array([float(one == name) for one in who]) for name in Proposers._fields))
        rows = features(drafts, k, n, context)
        model = fit(rows / seconds[:, None], rounds / (rounds + _CREDIBLE), near=self._last_model)
        residual = np.log(seconds / np.maximum(rows @ model, 1e-12))
        credible = _ODD * np.sqrt(rounds)  # a single round may have met anything
        return _Fitted(
            model=model,
            drafts=drafts,
            k=k,
            rows=np.log2(n),
            context=np.log2(context + SHORT),
            rounds=np.minimum(rounds, MEMORY),
            residual=np.clip(residual, -credible, credible),
        )

    def _near(self, proposer: ProposerName, max_k: int, slots: int, context: float) -> tuple[Array, Array]:
        """Weight of the cells near by, and with it log(measured / model)."""
        fitted = self._fitted
        same = (fitted.k == 0) | (np.asarray(getattr(fitted.drafts, proposer, fitted.k)) > 0)
        weight = same * fitted.rounds * _nearness(0.5 * np.abs(np.log2(context + SHORT) - fitted.context))
        by_k = _nearness(np.abs(np.arange(max_k + 1.0)[:, None] - fitted.k)) * weight
        by_rows = self._by_rows(slots)
        return by_k @ by_rows, (by_k * fitted.residual) @ by_rows

    def _by_rows(self, slots: int) -> Array:
        """→ [C, slots + 1], in fp32: most of the work of a plan."""
        if slots not in self._rows_near:
            n = np.log2(np.maximum(np.arange(slots + 1.0, dtype=np.float32), 1.0))
            self._rows_near[slots] = _nearness(np.abs(n - self._fitted.rows[:, None].astype(np.float32)))
        return self._rows_near[slots]

    def __getstate__(self) -> dict[str, Any]:
        """What was measured: what follows from it is made again where it is needed."""
        return {"_cells": self._cells, "_draft_token_s": self._draft_token_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        CostTable.__init__(self, draft_token_s=state["_draft_token_s"])
        self._cells = state["_cells"]

    def to_json(self) -> dict[str, Any]:
        """For a cache; the inverse of `from_json`."""
        cells = [{"proposer": key.proposer, "k": key.k, **cell._asdict()} for key, cell in sorted(self._cells.items())]
        return {"version": 1, "draft_token_s": self._draft_token_s, "cells": cells}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostTable:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not write."""
        if data["version"] != 1:
            raise ValueError(f"cost table version {data['version']!r}; expected 1")
        table = cls(draft_token_s=data["draft_token_s"])
        for cell in data["cells"]:
            numbers = [float(cell[name]) for name in ("running", "context", "rounds", "seconds")]
            if not all(np.isfinite(numbers)) or numbers[0] < 1 or numbers[1] < 0 or numbers[3] <= 0:
                raise ValueError(f"cost table cell {cell!r}; expected positive numbers")
            key = key_of(cell["proposer"], int(cell["k"]), numbers[0], numbers[1])
            table._cells[key] = Cell(*numbers)
        return table


@lru_cache(maxsize=16)
def _mesh(max_k: int, slots: int) -> tuple[Array, Array]:
    """K and rows, each [max_k + 1, slots + 1]; rows 0 read as 1."""
    k, n = np.meshgrid(np.arange(max_k + 1.0), np.maximum(np.arange(slots + 1.0), 1.0), indexing="ij")
    return k, n


def _one_hot(proposer: ProposerName) -> Proposers:
    return Proposers(float(proposer == "draft"), float(proposer == "ngram"))


def _nearness(apart: Array) -> Array:
    """Weight of cells so far apart, in octaves of rows or length or in K: 1 for the same, 1/30 half an octave off."""
    near = np.exp(-2 * apart)
    near /= apart / _NEAR + 1
    return near
