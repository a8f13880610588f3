"""Rounds as CUDA graphs: captured once for a number of batch rows and a `RoundKey`, replayed from then on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_key import RoundKey


class Rounds(Protocol):
    """Runs rounds for any number of rows."""

    def run(self, slots: list[int], key: RoundKey) -> Tensor:
        """slots: of the rows that take part → what `Round` gives, on the device, of B >= len(slots) rows."""
        ...

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        """Does ahead of time what the first round of each key would have to do, for every batch size; of keys for
        which the time does not suffice, their first rounds do it."""
        ...


class EagerRounds:
    """Every operation launched as it comes: for CPUs."""

    def __init__(self, round_: Round) -> None:
        self._round = round_

    def run(self, slots: list[int], key: RoundKey) -> Tensor:
        return self._round(self._round.state.upload(slots), key)

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        """Nothing."""


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    slots: Tensor
    """[B] int64: read by the graph."""
    packed: Tensor
    """What `Round` gives: written by the graph."""


def buckets(slots: int) -> tuple[int, ...]:
    """Batch sizes that are captured, ascending: any number of rows fits one with at most a fifth of padding or so."""
    sizes = {1, 2, 4, slots}
    sizes.update(range(8, slots, 8) if slots <= 64 else range(8, 64, 8))
    sizes.update(range(64, min(slots, 256), 32))
    sizes.update(range(256, slots, 64))
    return tuple(sorted(size for size in sizes if size <= slots))


class GraphedRounds:
    """Rounds of one CUDA device, in one memory pool.

    A graph's inputs and outputs lie outside the pool, so that the host may copy a result while the next graph, which
    reuses the pool, is queued. Padding rows map to the dummy slot: they are never active and commit nothing, which also
    makes the warm-up before a capture harmless.
    """

    def __init__(self, round_: Round, graph_capture: GraphCapture, *, slots: int) -> None:
        self._round, self._graph_capture = round_, graph_capture
        self._buckets = buckets(slots)
        self._graphs: dict[tuple[int, RoundKey], _Captured] = {}

    def run(self, slots: list[int], key: RoundKey) -> Tensor:
        size = next(bucket for bucket in self._buckets if bucket >= len(slots))
        captured = self._captured(size, key)
        dummy = self._round.state.dummy
        captured.slots.copy_(self._round.state.upload(slots + [dummy] * (size - len(slots))))
        captured.graph.replay()
        return captured.packed

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        began = time.perf_counter()
        keys = list(keys)
        for size in reversed(self._buckets):  # largest first: the others then fit into the pool that it made
            for key in keys:
                if time.perf_counter() - began > within_s:
                    return
                self._captured(size, key)

    def _captured(self, size: int, key: RoundKey) -> _Captured:
        if (size, key) not in self._graphs:
            self._graphs[size, key] = self._capture(size, key)
        return self._graphs[size, key]

    def _capture(self, size: int, key: RoundKey) -> _Captured:
        state = self._round.state
        slots = torch.full((size,), state.dummy, dtype=torch.int64, device=state.device)
        graph, packed = self._graph_capture.capture(
            lambda: self._round(slots, key).clone(),  # a normal tensor: the round's own is one of inference mode
            lambda packed: packed.copy_(self._round(slots, key)),
        )
        return _Captured(graph, slots, packed)
