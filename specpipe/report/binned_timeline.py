"""The timeline of a run in at most a few hundred bins, whatever its length and number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from specpipe.arrays import Array

MAX_BINS = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class BinnedTimeline:
    """Values [bins] over time, NaN in bins without work. Pauses between starts are left out."""

    seconds: Array
    """Middle of each bin, in seconds since the first one began."""
    width_s: float
    """Length of a bin in seconds."""
    starts: tuple[float, ...]
    """Beginning of the second and later starts, on the same clock."""
    tokens_per_s: Array
    """Output tokens per second of all workers."""
    expected_tokens_per_s: Array
    """Output tokens per second of all workers that the plans expected; 0 if they gave no expectation."""
    queue_depth: Array
    """Mean over workers."""
    occupancy: Array
    """Running rows of a worker, mean over workers."""
    slots: Array
    """Slots of a worker, mean over workers."""
    k: Array
    """Mean over row-rounds."""
    acceptance_length: Array
    """NaN in bins without drafts."""

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.seconds)


def bin_timelines(tables: Sequence[pa.Table], max_bins: int = MAX_BINS) -> BinnedTimeline | None:
    """Returns the timeline of a run in at most `max_bins` bins; None if it has no samples.

    tables: the timelines (telemetry/timeline-*.parquet) of each start, in order.
    """
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return None
    spans = [_span(table) for table in tables]
    offsets = np.concatenate([[0.0], np.cumsum([end - begin for begin, end in spans])])
    total = float(offsets[-1])
    longest_interval = max(float(pc.max(table["interval_s"]).as_py()) for table in tables)
    width = max(longest_interval, np.ceil(total / max_bins))
    sums = _BinSums(int(np.ceil(total / width)))
    for table, (begin, _), offset in zip(tables, spans, offsets, strict=False):
        sums.add(table, ((_column(table, "second") - begin + offset) // width).astype(np.int64))
    return sums.timeline(total, width, tuple(float(offset) for offset in offsets[1:-1]))


def _span(table: pa.Table) -> tuple[float, float]:
    """Returns the beginning and the end of a start."""
    ends = pc.max(pc.add(table["second"], table["interval_s"])).as_py()
    return float(pc.min(table["second"]).as_py()), float(ends)


def _column(table: pa.Table, name: str) -> Array:
    values: Any = table[name].to_numpy()
    return np.asarray(values, dtype=np.float64)


def _expected(table: pa.Table) -> Array:
    """Returns the expected throughput; zeros for policies, and for older versions, that do not record it."""
    name = "expected_tokens_per_s"
    return _column(table, name) if name in table.column_names else np.zeros(table.num_rows)


class _BinSums:
    """Sums by bin, whose quotients are the timeline's values."""

    def __init__(self, bins: int) -> None:
        names = ("time", "tokens", "expected", "depth", "rows", "slots", "row_rounds", "k", "drafts", "accepted")
        self._bins = bins
        self._by_name = {name: np.zeros(bins) for name in names}

    def add(self, table: pa.Table, bins: npt.NDArray[np.int64]) -> None:
        """Adds samples. `bins`: the bin of each row of the table."""
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
        """Returns the values of all bins. `total`: seconds; `width`: seconds of a bin."""
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


def _ratio(above: Array, below: Array) -> Array:
    """Returns above / below; NaN where `below` is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)
