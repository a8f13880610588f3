"""Table of round costs: measured seconds, and estimates from them for rounds that were never measured."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from specpipe.core import CostPoint, PrefillPoint, Profile, ProposerName
from specpipe.speculation.estimates.cost_cells import CellKey, CostCell, CostCells, cell_key
from specpipe.speculation.estimates.cost_fit import CostFit, CostGrid
from specpipe.speculation.estimates.prefill_cost import TOKENS_OF_A_FORWARD, PrefillCost, PrefillPrice
from specpipe.speculation.estimates.round_model import DRAFT

_VERSION = 2  # of the JSON values; tables of other versions are not read


class CostTable:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` returns a new one."""

    def __init__(self, points: Iterable[CostPoint] = (), *, prefills: Iterable[PrefillPoint] = ()) -> None:
        """prefills: measured prefills of the draft model."""
        self._become(CostCells().with_points(points), PrefillCost(prefills))

    def _become(self, cells: CostCells, prefills: PrefillCost, before: CostFit | None = None) -> None:
        """Sets all fields. before: the fit of the predecessor."""
        self._cells, self._prefills, self._before = cells, prefills, before
        self._grids: dict[tuple[ProposerName, int, int, float], CostGrid] = {}

    def with_points(self, points: Iterable[CostPoint]) -> CostTable:
        """Returns a table with these rounds merged in; the history of each cell decays."""
        return self._next(self._cells.with_points(points), self._prefills)

    def with_prefills(self, points: Iterable[PrefillPoint]) -> CostTable:
        """Returns a table with these prefills of the draft model merged in."""
        return self._next(self._cells, self._prefills.with_points(points))

    def with_profile(self, profile: Profile) -> CostTable:
        """Returns a table with a worker's start-up profile merged in."""
        cells = self._cells.with_points(profile.rounds, profiled=True)
        return self._next(cells, self._prefills.with_points(profile.draft_prefills))

    def _next(self, cells: CostCells, prefills: PrefillCost) -> CostTable:
        """Returns a table with these contents that may reuse this table's fit."""
        table = object.__new__(CostTable)
        table._become(cells, prefills, self.__dict__.get("_fit", self._before))
        return table

    def __bool__(self) -> bool:
        """True if any round was measured."""
        return len(self._cells) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # equality by content, so not hashable

    @property
    def draft_prefill(self) -> PrefillPrice:
        """Price of a prefill by the draft model: measured, or estimated from the cost of a draft step."""
        if self._prefills:
            return self._prefills.price
        step = float(self._fit.model[DRAFT])
        return PrefillPrice(step, step / TOKENS_OF_A_FORWARD)

    @cached_property
    def _fit(self) -> CostFit:
        return CostFit.of(self._cells, self._before)

    def seconds(self, *, proposer: ProposerName, k: int, running: int, context: float) -> float:
        """Returns the seconds of one round. Raises ValueError if the table is empty."""
        widest = max([k, *(key.k for key, _ in self._cells)])
        fullest = max([running, *(round(cell.running) for _, cell in self._cells)])
        grid = self.grid(proposer=proposer, max_k=widest, slots=fullest, context=context)
        return float(grid.seconds[k, running])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> CostGrid:
        """Returns the seconds of a round for every K and row count. Raises ValueError if the table is empty."""
        if not self._cells:
            raise ValueError("the cost table is empty; expected at least one measured point")
        key = (proposer, max_k, slots, context)
        if key not in self._grids:
            self._grids[key] = self._fit.grid(*key)
        return self._grids[key]

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the measurements alone; the fit is computed again on first use."""
        return {"cells": list(self._cells), "prefills": self._prefills.to_json()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._become(CostCells().replaced(dict(state["cells"])), PrefillCost.from_json(state["prefills"]))

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values for the cost cache; the inverse of `from_json`."""
        cells = [
            {"proposer": key.proposer, "k": key.k, "profiled": key.profiled, **cell._asdict()}
            for key, cell in sorted(self._cells)
        ]
        return {"version": _VERSION, "draft_prefills": self._prefills.to_json(), "cells": cells}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostTable:
        """Reads the values of `to_json`. Raises ValueError, KeyError or TypeError for others."""
        if data["version"] != _VERSION:
            raise ValueError(f"cost table version {data['version']!r}; expected {_VERSION}")
        cells: dict[CellKey, CostCell] = {}
        for cell in data["cells"]:
            numbers = [float(cell[name]) for name in CostCell._fields]
            if not all(np.isfinite(numbers)) or numbers[0] < 1 or numbers[1] < 0 or numbers[3] <= 0:
                raise ValueError(f"cost table cell {cell!r}; expected positive numbers")
            key = cell_key(cell["proposer"], int(cell["k"]), *numbers[:2], profiled=bool(cell["profiled"]))
            cells[key] = CostCell(*numbers)
        table = cls()
        table._become(CostCells().replaced(cells), PrefillCost.from_json(data["draft_prefills"]))
        return table
