"""What rounds take: the model of round_model.py fitted to what was measured, and what real rounds took beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.round_model import DRAFT, features, fit, rising

Array = npt.NDArray[np.float64]
_MEMORY = 64.0  # rounds that the past of a cell counts for at most: drift is followed within about as many
_CREDIBLE = 4.0  # rounds that make a cell count half in the fit
_DOUBT = 1.5  # rounds near by that make the model and what was measured beyond it count alike
_ODD = 0.3  # log of how far a single round may lie from the model and be believed
_NEAR = 0.05  # octaves, or K, that are no distance
_OCTAVE = 4  # cells to a doubling of the rows
_SHORT = 64.0  # tokens of context that make no difference
_MANY = 256.0  # tokens that a draft step takes in the time of one


class _Key(NamedTuple):
    proposer: ProposerName
    k: int
    rows: int
    """Quarter octave."""
    context: int
    """Octave."""


@dataclass(frozen=True, slots=True)
class _Cell:
    running: float
    context: float
    rounds: float
    seconds: float
    """Of one round."""


class _Fitted(NamedTuple):
    model: Array
    """The coefficients."""
    k: Array
    n: Array
    context: Array
    rounds: Array
    residual: Array
    """log(measured / model)."""


def points_to_time(slots: int, k: int, proposers: Iterable[ProposerName]) -> list[tuple[int, ProposerName, int]]:
    """→ (rows, proposer, K) of the rounds worth timing before the first row, the most telling first.

    One row, all slots, and their geometric mean, plain and with two draft tokens (fewer if K is less): with all slots
    alone, what a draft step costs in itself and by the row cannot be told apart.
    """
    names: list[ProposerName] = ["none", *(name for name in proposers if name != "none" and k)]
    ends, between = list(dict.fromkeys((1, slots))), round(slots**0.5)
    rows = [(n, name) for name in names for n in ends]
    rows += [(between, name) for name in names if between not in ends]
    return [(n, name, min(2, k) if name != "none" else 0) for n, name in rows]


class CostTable:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` makes a new one."""

    def __init__(self, points: Iterable[CostPoint] = (), *, draft_token_s: float | None = None) -> None:
        """`draft_token_s`: seconds that the draft model needs to prefill one token, where that was measured."""
        self._cells: dict[_Key, _Cell] = {}
        self._draft_token_s = draft_token_s
        for point in points:
            self._add(point)

    def _add(self, point: CostPoint) -> None:
        if point.rounds < 1 or point.seconds <= 0 or point.running < 1:
            return
        context = max(0.0, point.context)
        key = _key(point.proposer, point.k, point.running, context)
        old = self._cells.get(key)
        new = _Cell(float(point.running), context, float(point.rounds), point.seconds / point.rounds)
        self._cells[key] = new if old is None else _mean(old, new)

    def with_points(self, points: Iterable[CostPoint]) -> CostTable:
        """What was known and what was measured since; the past of a cell fades."""
        table = CostTable(draft_token_s=self._draft_token_s)
        table._cells = dict(self._cells)
        for point in points:
            table._add(point)
        return table

    def with_prefill(self, *, tokens: int, seconds: float) -> CostTable:
        """The draft model has prefilled `tokens` in `seconds`."""
        if tokens < 1:
            return self
        now = seconds / tokens
        known = now if self._draft_token_s is None else 0.5 * (self._draft_token_s + now)
        table = CostTable(draft_token_s=known)
        table._cells = dict(self._cells)
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
        return float(self.grid(proposer=proposer, max_k=widest, slots=fullest, context=context)[k, running])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """→ [max_k + 1, slots + 1] seconds of a round by K and rows; rising in both. Rows 0 read as 1.

        Raises ValueError for a table that knows nothing.
        """
        if not self._cells:
            raise ValueError("the cost table is empty; expected at least one measured point")
        k, n = _mesh(max_k, slots)
        model = features(proposer, k, n, np.full_like(k, context)) @ self._fitted.model
        near, residual = self._near(proposer, k, n, context)
        return rising(model * np.exp(residual / (near + _DOUBT)))

    def known(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Array:
        """→ [max_k + 1, slots + 1]: how much of `grid` was measured near by, 0 to 1, rather than concluded."""
        k, n = _mesh(max_k, slots)
        near, _ = self._near(proposer, k, n, context)
        return np.asarray(near / (near + 1.0))

    @cached_property
    def _fitted(self) -> _Fitted:
        k = np.array([float(key.k) for key in self._cells])
        cells = np.array([(c.running, c.context, c.rounds, c.seconds) for c in self._cells.values()])
        n, context, rounds, seconds = cells.T
        rows = np.stack(
            [
                features(key.proposer, *(np.array(value) for value in (float(key.k), cell.running, cell.context)))
                for key, cell in self._cells.items()
            ]
        )
        model = fit(rows / seconds[:, None], rounds / (rounds + _CREDIBLE))
        residual = np.log(seconds / np.maximum(rows @ model, 1e-12))
        credible = _ODD * np.sqrt(rounds)  # a single round may have met anything
        return _Fitted(model, k, n, context, np.minimum(rounds, _MEMORY), np.clip(residual, -credible, credible))

    def _near(self, proposer: ProposerName, k: Array, n: Array, context: float) -> tuple[Array, Array]:
        """Weight of the cells near by, and with it log(measured / model)."""
        fitted = self._fitted
        same = np.array([float(key.k == 0 or key.proposer == proposer) for key in self._cells])
        apart = (
            np.abs(np.log2(n)[..., None] - np.log2(fitted.n))
            + np.abs(k[..., None] - fitted.k)
            + 0.5 * np.abs(np.log2((context + _SHORT) / (fitted.context + _SHORT)))
        )
        near = fitted.rounds * same * np.exp(-2 * apart) * _NEAR / (_NEAR + apart)
        return near.sum(axis=-1), near @ fitted.residual

    def to_json(self) -> dict[str, Any]:
        """For a cache; the inverse of `from_json`."""
        cells = [{"proposer": key.proposer, "k": key.k, **asdict(cell)} for key, cell in sorted(self._cells.items())]
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
            key = _key(cell["proposer"], int(cell["k"]), numbers[0], numbers[1])
            table._cells[key] = _Cell(*numbers)
        return table


def _key(proposer: ProposerName, k: int, running: float, context: float) -> _Key:
    rows, octave = round(_OCTAVE * math.log2(running)), round(math.log2(context + _SHORT))
    return _Key(proposer if k else "none", k, rows, octave)


def _mean(old: _Cell, new: _Cell) -> _Cell:
    past = min(old.rounds, _MEMORY)
    share = new.rounds / (past + new.rounds)
    return _Cell(
        running=old.running + share * (new.running - old.running),
        context=old.context + share * (new.context - old.context),
        rounds=past + new.rounds,
        seconds=old.seconds + share * (new.seconds - old.seconds),
    )


def _mesh(max_k: int, slots: int) -> tuple[Array, Array]:
    """K and rows, each [max_k + 1, slots + 1]; rows 0 read as 1."""
    k, n = np.meshgrid(np.arange(max_k + 1.0), np.maximum(np.arange(slots + 1.0), 1.0), indexing="ij")
    return k, n
