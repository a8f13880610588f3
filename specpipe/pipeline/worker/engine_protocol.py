"""What a worker asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specpipe.core import EngineConfig, Request, SpeculationPlan, StepReport


class EngineProtocol(Protocol):
    """What the loop needs of an engine. Only `submit` and the properties may be used from other threads."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def kv_pages_used(self) -> int: ...

    @property
    def kv_pages(self) -> int: ...

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None: ...

    def step(self) -> StepReport | None: ...


class NoEngine:
    """In place of an engine that is gone, whose memory somebody else wants."""

    config = EngineConfig()
    running = waiting = kv_pages_used = kv_pages = 0

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        raise AssertionError("submitted to an engine that is gone")

    def step(self) -> StepReport | None:
        return None
