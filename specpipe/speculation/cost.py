"""What rounds take: a table of what was measured, and what follows from it for rounds that were not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.cost_cells import Cell, Cells, Key, key_of
from specpipe.speculation.cost_fit import CostFit, Grid
from specpipe.speculation.round_model import DRAFT

_MANY = 256.0  # tokens that a draft step takes in the time of one


class CostTable:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` makes a new one."""

    def __init__(self, points: Iterable[CostPoint] = (), *, draft_token_s: float | None = None) -> None:
        """`draft_token_s`: seconds that the draft model needs to prefill one token, where that was measured."""
        self._become(Cells().with_points(points), draft_token_s)

    def _become(self, cells: Cells, draft_token_s: float | None, before: CostFit | None = None) -> None:
        """before: the fit of the table that this one goes on from."""
        self._cells, self._draft_token_s, self._before = cells, draft_token_s, before
        self._grids: dict[tuple[ProposerName, int, int, float], Grid] = {}

    def with_points(self, points: Iterable[CostPoint]) -> CostTable:
        """What was known and what was measured since; the past of a cell fades."""
        return self._next(self._cells.with_points(points), self._draft_token_s)

    def with_prefill(self, *, tokens: int, seconds: float) -> CostTable:
        """The draft model has prefilled `tokens` in `seconds`."""
        if tokens < 1:
            return self
        now = seconds / tokens
        known = now if self._draft_token_s is None else 0.5 * (self._draft_token_s + now)
        return self._next(self._cells, known)

    def _next(self, cells: Cells, draft_token_s: float | None) -> CostTable:
        table = CostTable()
        table._become(cells, draft_token_s, self.__dict__.get("_fit", self._before))
        return table

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return len(self._cells) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # equal by content: no key of a dict

    @property
    def draft_token_s(self) -> float:
        """Seconds to prefill one token with the draft model: measured, or from the weights that a draft step reads."""
        if self._draft_token_s is not None:
            return self._draft_token_s
        return float(self._fit.model[DRAFT]) / _MANY

    @cached_property
    def _fit(self) -> CostFit:
        return CostFit.of(self._cells, near=self._before and self._before.model)

    def seconds(self, *, proposer: ProposerName, k: int, running: int, context: float) -> float:
        """One round. Raises ValueError for a table that knows nothing."""
        widest = max([k, *(key.k for key, _ in self._cells)])
        fullest = max([running, *(round(cell.running) for _, cell in self._cells)])
        grid = self.grid(proposer=proposer, max_k=widest, slots=fullest, context=context)
        return float(grid.seconds[k, running])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> Grid:
        """Seconds of a round for every K and number of rows. Raises ValueError for a table that knows nothing."""
        if not self._cells:
            raise ValueError("the cost table is empty; expected at least one measured point")
        asked = (proposer, max_k, slots, context)
        if asked not in self._grids:
            self._grids[asked] = self._fit.grid(*asked)
        return self._grids[asked]

    def __getstate__(self) -> dict[str, Any]:
        """What was measured: what follows from it is made again where it is needed."""
        return {"cells": list(self._cells), "draft_token_s": self._draft_token_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._become(Cells().replaced(dict(state["cells"])), state["draft_token_s"])

    def to_json(self) -> dict[str, Any]:
        """For a cache; the inverse of `from_json`."""
        cells = [{"proposer": key.proposer, "k": key.k, **cell._asdict()} for key, cell in sorted(self._cells)]
        return {"version": 1, "draft_token_s": self._draft_token_s, "cells": cells}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostTable:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not write."""
        if data["version"] != 1:
            raise ValueError(f"cost table version {data['version']!r}; expected 1")
        cells: dict[Key, Cell] = {}
        for cell in data["cells"]:
            numbers = [float(cell[name]) for name in Cell._fields]
            if not all(np.isfinite(numbers)) or numbers[0] < 1 or numbers[1] < 0 or numbers[3] <= 0:
                raise ValueError(f"cost table cell {cell!r}; expected positive numbers")
            cells[key_of(cell["proposer"], int(cell["k"]), numbers[0], numbers[1])] = Cell(*numbers)
        table = cls()
        table._become(Cells().replaced(cells), data["draft_token_s"])
        return table
