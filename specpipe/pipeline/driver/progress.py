"""How far a run is: a snapshot for displays."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WINDOW_S = 15.0  # the speed shown is that of the last seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A snapshot of a run, a few times a second at most."""

    elapsed_s: float
    total_rows: int
    done_rows: int
    """Rows published, by earlier starts too, and rows finished in shards that still run."""
    failed_rows: int
    total_shards: int
    published_shards: int
    failed_shards: int
    workers: int
    """Live ones."""
    starting: int
    """Placed, and loading their models."""
    unplaced: int
    """Asked for, and waiting for room in the cluster."""
    running: int
    waiting: int
    """Rows in workers without a slot."""
    k: float
    """Mean over workers of their latest round's K."""
    queue_depth: float
    """Mean over workers."""
    acceptance_length: float
    tokens_per_s: float
    """Output tokens, over the last seconds."""
    eta_s: float | None
    """None until it can be told."""
    draining: bool
    retries: int = 0
    """Attempts at shards after the first, by this start."""
    lost_workers: int = 0
    """Workers that died or hung, of this start."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        """The inverse of `to_dict`. Fields that it does not know are left out; TypeError for a missing one."""
        return cls(**{item.name: data[item.name] for item in dataclasses.fields(cls) if item.name in data})


class Speed:
    """Rate of a growing counter over the last seconds."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        self._points.append((now, value))
        while len(self._points) > 2 and now - self._points[0][0] > self._window_s:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        """0.0 until two points are known."""
        if len(self._points) < 2:
            return 0.0
        (began, low), (now, high) = self._points[0], self._points[-1]
        return max(0.0, high - low) / (now - began) if now > began else 0.0
