"""A run's timeline in at most a few hundred points, however long it was and however many workers it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Points = npt.NDArray[np.float64]
MOST_BINS = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class BinnedTimeline:
    """Points [bins], NaN where no worker did anything. Pauses between starts are left out of the time."""

    seconds: Points
    """Middle of each bin, since the first one began."""
    width_s: float
    starts: tuple[float, ...]
    """When the second and later starts began, on the same clock."""
    tokens_per_s: Points
    """Of all workers."""
    expected_tokens_per_s: Points
    """Of all workers, by the plans that ruled; 0 where they did not say."""
    queue_depth: Points
    occupancy: Points
    """Rows running in a worker, mean over workers."""
    slots: Points
    """Of a worker."""
    k: Points
    """Mean over row-rounds."""
    acceptance_length: Points
    """NaN where nothing was drafted."""

    @property
    def bins(self) -> int:
        return len(self.seconds)


def bin_timelines(tables: Sequence[pa.Table], most: int = MOST_BINS) -> BinnedTimeline | None:
    """tables: of telemetry.timeline_schema, one a start, in order. None when there is nothing to show."""
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return None
    spans = [_span(table) for table in tables]
    offsets = np.concatenate([[0.0], np.cumsum([end - begin for begin, end in spans])])
    total = float(offsets[-1])
    coarsest = max(float(pc.max(table["interval_s"]).as_py()) for table in tables)
    width = max(coarsest, np.ceil(total / most))
    sums = _Sums(int(np.ceil(total / width)))
    for table, (begin, _), offset in zip(tables, spans, offsets, strict=False):
        sums.add(table, ((_column(table, "second") - begin + offset) // width).astype(np.int64))
    return sums.timeline(total, width, tuple(float(offset) for offset in offsets[1:-1]))


def _span(table: pa.Table) -> tuple[float, float]:
    """First and last moment of a start."""
    ends = pc.max(pc.add(table["second"], table["interval_s"])).as_py()
    return float(pc.min(table["second"]).as_py()), float(ends)


def _column(table: pa.Table, name: str) -> Points:
    values: Any = table[name].to_numpy()
    return np.asarray(values, dtype=np.float64)


def _expected(table: pa.Table) -> Points:
    """Zeros for the timelines of policies, and of versions, that do not say."""
    name = "expected_tokens_per_s"
    return _column(table, name) if name in table.column_names else np.zeros(table.num_rows)


class _Sums:
    """By bin, what the points are quotients of."""

    def __init__(self, bins: int) -> None:
        names = ("time", "tokens", "expected", "depth", "rows", "slots", "row_rounds", "k", "drafts", "accepted")
        self._bins = bins
        self._by_name = {name: np.zeros(bins) for name in names}

    def add(self, table: pa.Table, bins: npt.NDArray[np.int64]) -> None:
        time, occupancy = _column(table, "interval_s"), _column(table, "occupancy")
        row_rounds = _column(table, "rounds") * occupancy
        for name, values in {
            "time": time,
            "tokens": _column(table, "output_tokens"),
            "expected": time * _expected(table),
            "depth": time * _column(table, "queue_depth"),
            "rows": time * occupancy,
            "slots": time * _column(table, "slots"),
            "row_rounds": row_rounds,
            "k": row_rounds * _column(table, "k"),
            "drafts": _column(table, "drafts"),
            "accepted": _column(table, "accepted_tokens"),
        }.items():
            self._by_name[name] += np.bincount(bins, values, self._bins)

    def timeline(self, total: float, width: float, starts: tuple[float, ...]) -> BinnedTimeline:
        sums = self._by_name
        edges = np.minimum(np.arange(self._bins + 1) * width, total)
        return BinnedTimeline(
            seconds=(edges[1:] + edges[:-1]) / 2,
            width_s=float(width),
            starts=starts,
            tokens_per_s=sums["tokens"] / np.diff(edges),
            expected_tokens_per_s=sums["expected"] / np.diff(edges),
            queue_depth=_ratio(sums["depth"], sums["time"]),
            occupancy=_ratio(sums["rows"], sums["time"]),
            slots=_ratio(sums["slots"], sums["time"]),
            k=_ratio(sums["k"], sums["row_rounds"]),
            acceptance_length=1.0 + _ratio(sums["accepted"], sums["drafts"]),
        )


def _ratio(above: Points, below: Points) -> Points:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)
