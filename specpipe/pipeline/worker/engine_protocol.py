"""The interface of an engine as a worker uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specpipe.core import EngineConfig, Request, SpeculationPlan, StepReport


class EngineProtocol(Protocol):
    """An engine. `step` has one caller; `submit` and the properties may be used from other threads."""

    @property
    def config(self) -> EngineConfig:
        """Limits and speculation settings of the engine."""

    @property
    def running(self) -> int:
        """Number of rows with a slot."""

    @property
    def waiting(self) -> int:
        """Number of rows without a slot."""

    @property
    def kv_pages_used(self) -> int:
        """Number of KV pages in use."""

    @property
    def kv_pages(self) -> int:
        """Number of KV pages of the engine."""

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, and applies the plan from the next round on."""

    def step(self) -> StepReport | None:
        """Runs at most one prefill and one round. Returns None when there is no row."""


class StoppedEngine:
    """Stands in for an engine that failed, so that the memory of the engine can be freed."""

    config = EngineConfig()
    running = waiting = kv_pages_used = kv_pages = 0

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Raises AssertionError."""
        raise AssertionError("submitted to a stopped engine")

    def step(self) -> StepReport | None:
        """Returns None."""
        return None
