"""What rounds take: a table of what was measured, and what follows from it for rounds that were not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from specpipe.core import CostPoint, PrefillPoint, Profile, ProposerName
from specpipe.speculation.cost_cells import CellKey, CostCell, CostCells, cell_key
from specpipe.speculation.cost_fit import CostFit, CostGrid
from specpipe.speculation.prefill_cost import TOKENS_OF_A_FORWARD, PrefillCost, PrefillPrice
from specpipe.speculation.round_model import DRAFT

_VERSION = 2


class CostTable:
    """Seconds of a round by proposer, K, rows and context. Immutable: `with_points` makes a new one."""

    def __init__(self, points: Iterable[CostPoint] = (), *, prefills: Iterable[PrefillPoint] = ()) -> None:
        """`prefills`: by the draft model."""
        self._become(CostCells().with_points(points), PrefillCost(prefills))

    def _become(self, cells: CostCells, prefills: PrefillCost, before: CostFit | None = None) -> None:
        """before: the fit of the table that this one goes on from."""
        self._cells, self._prefills, self._before = cells, prefills, before
        self._grids: dict[tuple[ProposerName, int, int, float], CostGrid] = {}

    def with_points(self, points: Iterable[CostPoint]) -> CostTable:
        """What was known and what was measured since; the past of a cell fades."""
        return self._next(self._cells.with_points(points), self._prefills)

    def with_prefills(self, points: Iterable[PrefillPoint]) -> CostTable:
        """The same of the draft model's prefills."""
        return self._next(self._cells, self._prefills.with_points(points))

    def with_profile(self, profile: Profile) -> CostTable:
        """The same of what was timed before the first row."""
        cells = self._cells.with_points(profile.rounds, profiled=True)
        return self._next(cells, self._prefills.with_points(profile.draft_prefills))

    def _next(self, cells: CostCells, prefills: PrefillCost) -> CostTable:
        table = object.__new__(CostTable)
        table._become(cells, prefills, self.__dict__.get("_fit", self._before))
        return table

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return len(self._cells) > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # equal by content: no key of a dict

    @property
    def draft_prefill(self) -> PrefillPrice:
        """Of the draft model: measured, or from the weights that a draft step reads."""
        if self._prefills:
            return self._prefills.price
        step = float(self._fit.model[DRAFT])
        return PrefillPrice(step, step / TOKENS_OF_A_FORWARD)

    @cached_property
    def _fit(self) -> CostFit:
        return CostFit.of(self._cells, self._before)

    def seconds(self, *, proposer: ProposerName, k: int, running: int, context: float) -> float:
        """One round. Raises ValueError for a table that knows nothing."""
        widest = max([k, *(key.k for key, _ in self._cells)])
        fullest = max([running, *(round(cell.running) for _, cell in self._cells)])
        grid = self.grid(proposer=proposer, max_k=widest, slots=fullest, context=context)
        return float(grid.seconds[k, running])

    def grid(self, *, proposer: ProposerName, max_k: int, slots: int, context: float) -> CostGrid:
        """Seconds of a round for every K and number of rows. Raises ValueError for a table that knows nothing."""
        if not self._cells:
            raise ValueError("the cost table is empty; expected at least one measured point")
        asked = (proposer, max_k, slots, context)
        if asked not in self._grids:
            self._grids[asked] = self._fit.grid(*asked)
        return self._grids[asked]

    def __getstate__(self) -> dict[str, Any]:
        """What was measured: what follows from it is made again where it is needed."""
        return {"cells": list(self._cells), "prefills": self._prefills.to_json()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._become(CostCells().replaced(dict(state["cells"])), PrefillCost.from_json(state["prefills"]))

    def to_json(self) -> dict[str, Any]:
        """For a cache; the inverse of `from_json`."""
        cells = [
            {"proposer": key.proposer, "k": key.k, "profiled": key.profiled, **cell._asdict()}
            for key, cell in sorted(self._cells)
        ]
        return {"version": _VERSION, "draft_prefills": self._prefills.to_json(), "cells": cells}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostTable:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not write."""
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
