"""Rounds as CUDA graphs: captured once for each batch size and `RoundKey`, then replayed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from torch import Tensor

from specpipe.engine.device.graph_capture import CapturedGraph, GraphCapture
from specpipe.engine.forward.round_rows import RowLayouts
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_inputs import dummy_inputs, pack_inputs, split_inputs
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.prefix_groups import PrefixGroups


class Rounds(Protocol):
    """Runs rounds for any number of rows."""

    def run(self, slots: list[int], key: RoundKey, groups: PrefixGroups | None = None) -> Tensor:
        """Runs a round of the rows in these slots; returns the result of `Round` for B >= len(slots) batch rows.

        groups: rows that share their first pages; given if and only if the key is `shared`.
        """
        ...

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        """Captures these keys at every batch size for at most `within_s` seconds; the rest on first use."""
        ...


class EagerRounds:
    """Launches every operation as it comes: for CPUs."""

    def __init__(self, round_: Round) -> None:
        self._round, self._layouts = round_, RowLayouts()

    def run(self, slots: list[int], key: RoundKey, groups: PrefixGroups | None = None) -> Tensor:
        """Runs a round of exactly these rows."""
        state, rows = self._round.state, len(slots)
        packed = state.upload(pack_inputs(slots, groups, rows, dummy=state.dummy))
        return self._round(split_inputs(packed, rows, shared=key.shared), key, self._layouts)

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        """Does nothing."""


class RoundBuffers(NamedTuple):
    """Tensors of one captured round, outside of the graphs' memory pool."""

    inputs: Tensor
    """The result of `pack_inputs`: read by the graph."""
    packed: Tensor
    """The result of `Round`: written by the graph."""
    layouts: RowLayouts
    """Read by the graph."""


def batch_sizes(slots: int) -> tuple[int, ...]:
    """Returns the batch sizes that are captured, ascending. Padding is at most about a fifth of a batch."""
    sizes = {1, 2, 4, slots}
    sizes.update(range(8, slots, 8) if slots <= 64 else range(8, 64, 8))
    sizes.update(range(64, min(slots, 256), 32))
    sizes.update(range(256, slots, 64))
    return tuple(sorted(size for size in sizes if size <= slots))


class GraphedRounds:
    """Rounds of one CUDA device, as graphs in one memory pool.

    A graph's inputs and outputs lie outside the pool, so that the host may copy a result while the next graph, which
    reuses the pool, is queued. Padding rows map to the dummy slot: they are never active and commit nothing, which also
    makes the warm-up before a capture harmless.
    """

    def __init__(self, round_: Round, graph_capture: GraphCapture, *, slots: int) -> None:
        self._round, self._graph_capture = round_, graph_capture
        self._batch_sizes = batch_sizes(slots)
        self._graphs: dict[tuple[int, RoundKey], CapturedGraph[RoundBuffers]] = {}

    def run(self, slots: list[int], key: RoundKey, groups: PrefixGroups | None = None) -> Tensor:
        """Replays the graph of the smallest batch size that fits; captures it on first use."""
        size = next(size for size in self._batch_sizes if size >= len(slots))
        graph = self._graph(size, key)
        state = self._round.state
        graph.buffers.inputs.copy_(state.upload(pack_inputs(slots, groups, size, dummy=state.dummy)))
        graph.replay()
        return graph.buffers.packed

    def prepare(self, keys: Iterable[RoundKey], *, within_s: float) -> None:
        """Captures these keys at every batch size for at most `within_s` seconds."""
        began = time.perf_counter()
        keys = list(keys)
        for size in reversed(self._batch_sizes):  # largest first: the others then fit into the pool that it made
            for key in keys:
                if time.perf_counter() - began > within_s:
                    return
                if size > 1 or not key.shared:
                    self._graph(size, key)

    def _graph(self, size: int, key: RoundKey) -> CapturedGraph[RoundBuffers]:
        """Returns the graph of this batch size and key; captures it on first use."""
        if (size, key) not in self._graphs:
            self._graphs[size, key] = self._capture(size, key)
        return self._graphs[size, key]

    def _capture(self, size: int, key: RoundKey) -> CapturedGraph[RoundBuffers]:
        state, layouts = self._round.state, RowLayouts()
        inputs = state.upload(dummy_inputs(size, shared=key.shared, dummy=state.dummy))

        def warm_up() -> RoundBuffers:
            packed = self._round(split_inputs(inputs, size, shared=key.shared), key, layouts)
            # Cloned outside of inference mode: the host copies from a normal tensor.
            return RoundBuffers(inputs, packed.clone(), layouts)

        def work(buffers: RoundBuffers) -> None:
            rows = split_inputs(buffers.inputs, size, shared=key.shared)
            buffers.packed.copy_(self._round(rows, key, buffers.layouts))

        return self._graph_capture.capture(warm_up, work)
