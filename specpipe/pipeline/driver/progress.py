"""Snapshots of a run's progress, for displays, followers and metrics."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WINDOW_S = 30.0  # displayed speeds are means over these seconds: slow machines report a round every few seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A snapshot of a run, taken about once a second."""

    elapsed_s: float
    total_rows: int
    done_rows: int
    """Published rows, those of earlier starts included, and finished rows of shards in flight."""
    failed_rows: int
    total_shards: int
    published_shards: int
    failed_shards: int
    workers: int
    """Workers that are ready."""
    starting: int
    """Workers that load their models."""
    unplaced: int
    """Workers that wait for resources of the cluster."""
    running: int
    """Rows with a slot, over all workers."""
    waiting: int
    """Rows in workers without a slot."""
    k: float
    """Draft tokens per row in the latest round, mean over workers."""
    queue_depth: float
    """Rows per worker that are not finished, mean over workers."""
    acceptance_length: float
    tokens_per_s: float
    """Generated and scored tokens per second, over the last seconds."""
    eta_s: float | None
    """Estimate of the remaining seconds; None while there is no speed to estimate it from."""
    draining: bool
    """Running shards finish, and no more are dispatched."""
    input_tokens: int = 0
    """Prompt tokens of finished rows, with those of earlier starts."""
    output_tokens: int = 0
    """Generated and scored tokens, with those of earlier starts and of rows in flight."""
    retries: int = 0
    """Attempts at shards after the first, in this start."""
    lost_workers: int = 0
    """Workers that died or hung in this start."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        """Returns the snapshot of `to_dict`. Ignores unknown fields; raises TypeError for a missing one."""
        return cls(**{item.name: data[item.name] for item in dataclasses.fields(cls) if item.name in data})


class Speed:
    """Rate of a growing counter over the last seconds."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Adds the counter's value at a time in seconds."""
        self._points.append((now, value))
        while len(self._points) > 2 and now - self._points[0][0] > self._window_s:
            self._points.popleft()

    @property
    def per_second(self) -> float:
        """Rate between the oldest and the latest value in the window; 0.0 with fewer than two."""
        if len(self._points) < 2:
            return 0.0
        (began, low), (now, high) = self._points[0], self._points[-1]
        return max(0.0, high - low) / (now - began) if now > began else 0.0
