"""Histogram of latencies with log-spaced buckets, which can be merged; count, sum, minimum and maximum are exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# A bucket spans 3 %, and a quantile is read at its geometric middle: at most 1.5 % off.
_LOG_GROWTH = math.log(1.03)
_FLOOR = 1e-9  # smaller values, zero included, count in the lowest bucket


class LogHistogram:
    """Counts of non-negative values in buckets [1.03**i, 1.03**(i+1)).

    `quantile` is within 1.5 % of the order statistic of its rank (numpy's `inverted_cdf`); `count`, `total`, `low`
    and `high` are exact, also after any number of merges.
    """

    __slots__ = ("buckets", "count", "high", "low", "total")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.low = math.inf
        self.high = 0.0
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Counts one value. Raises ValueError for a negative or non-finite one."""
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"a latency is {value}; expected a finite number of 0 or more")
        bucket = math.floor(math.log(max(value, _FLOOR)) / _LOG_GROWTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def merge(self, other: LogHistogram) -> None:
        """Adds the counts of `other`."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    @property
    def mean(self) -> float:
        """Mean of all values; 0.0 when nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """Returns the smallest value that at least a share `q` (0 to 1) of all values does not exceed.

        Accurate to 1.5 %. Returns 0.0 when nothing was counted.
        """
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(q * self.count))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                middle = math.exp((bucket + 0.5) * _LOG_GROWTH)
                return min(max(middle, self.low), self.high)
        raise AssertionError(f"the buckets hold {seen} values, but the count is {self.count}")

    def to_dict(self) -> dict[str, Any]:
        """Returns lists and numbers, for JSON and Arrow."""
        keys = sorted(self.buckets)
        return {
            "bucket": keys,
            "rows": [self.buckets[key] for key in keys],
            "sum": self.total,
            "min": self.low if self.count else 0.0,
            "max": self.high,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LogHistogram:
        """Returns the histogram of which `to_dict` made `data`."""
        out = cls()
        out.buckets = dict(zip(data["bucket"], data["rows"], strict=True))
        out.count = sum(data["rows"])
        out.total = float(data["sum"])
        if out.count:
            out.low = float(data["min"])
            out.high = float(data["max"])
        return out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHistogram) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]
