"""Prefills of few tokens as CUDA graphs, padded to one of a few sizes.

With few slots a row is prefilled almost alone, and launching the kernels of all layers takes the host longer than the
device takes to run them: 20 ms against 8 ms for 270 tokens of an 8B and a 1B model on an H200.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.engine.device.graph_capture import CapturedGraph, GraphCapture
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.prefill import MIN_QUERIES, prefill
from specpipe.engine.state.chunks import Chunk, total_tokens
from specpipe.engine.state.prefix_groups import PrefixGroups
from specpipe.engine.state.slot_state import SlotState

GRAPH_SIZES = (64, 128, 256, 384, 512, 640, 768, 1024)
"""Tokens. Above the last size the device is slower than the host. Between sizes padding costs little: the vendor's
products have tiles of 128 tokens and more."""
MAX_CHUNKS = 64
"""Chunks of a captured prefill."""


def graph_sizes(budget: int) -> tuple[int, ...]:
    """Returns the sizes that prefills of at most `budget` tokens need."""
    return tuple(size for before, size in zip((0, *GRAPH_SIZES), GRAPH_SIZES, strict=False) if before < budget)


def pack_chunks(chunks: Sequence[Chunk], size: int, *, dummy: int) -> NDArray[np.int64]:
    """Returns the input of `prefill_packed` as one array: the chunks, padded to `size` tokens and `MAX_CHUNKS` chunks.

    dummy: the slot of padding tokens; its block table is all trash.
    """
    packed = np.zeros(sum(_field_sizes(size)), dtype=np.int64)
    token_slots, positions, starts, slots, ends = np.split(packed, np.cumsum(_field_sizes(size))[:-1])
    token_slots[:] = slots[:] = dummy
    end = 0
    for i, (slot, start, stop) in enumerate(chunks):
        begin, end = end, end + stop - start
        token_slots[begin:end], positions[begin:end] = slot, np.arange(start, stop)
        starts[i], slots[i], ends[i + 1 :] = start, slot, end
    return packed


def prefill_packed(runner: ModelRunner, state: SlotState, packed: Tensor, size: int) -> None:
    """Runs one forward over `size` tokens; the KV of the packed chunks is valid afterwards.

    packed [2 * size + 3 * MAX_CHUNKS + 1] int64: as `pack_chunks` returns it, on the device.
    """
    token_slots, positions, starts, slots, ends = packed.split(_field_sizes(size))
    with torch.inference_mode():
        runner.forward(
            state.tokens[token_slots, positions],
            positions,
            block_tables=state.block_table.index_select(0, slots),
            cu_queries=ends.to(torch.int32),
            starts=starts,
            max_queries=max(size, MIN_QUERIES),
            keep=None,
        )


def prefill_dummy(runner: ModelRunner, state: SlotState, size: int) -> Tensor:
    """Runs a prefill of padding alone, which changes no row; returns its packed input, to be overwritten."""
    packed = state.upload(pack_chunks([], size, dummy=state.dummy))
    prefill_packed(runner, state, packed, size)
    return packed


def _field_sizes(size: int) -> list[int]:
    """Returns the lengths of the packed fields: slots and positions of tokens, starts, slots and ends of chunks.

    All but the last are multiples of 16 bytes: kernels are compiled for the alignment of their inputs.
    """
    return [size, size, MAX_CHUNKS, MAX_CHUNKS, MAX_CHUNKS + 1]


class Prefills(Protocol):
    """Runs prefills of at most a budget's tokens."""

    def run(
        self,
        runner: ModelRunner,
        chunks: list[Chunk],
        groups: PrefixGroups | None = None,
        scored: Sequence[int] = (),
    ) -> Tensor:
        """Feeds the chunks to the model; arguments and result as in `prefill`. groups: None on a GPU."""
        ...

    def prepare(self, *, within_s: float) -> None:
        """Captures graphs for at most `within_s` seconds; the rest on first use."""
        ...


class EagerPrefills:
    """Launches every operation as it comes: for CPUs, and for prefills that no graph fits."""

    def __init__(self, state: SlotState) -> None:
        self._state = state

    def run(
        self,
        runner: ModelRunner,
        chunks: list[Chunk],
        groups: PrefixGroups | None = None,
        scored: Sequence[int] = (),
    ) -> Tensor:
        """Runs `prefill`."""
        return prefill(runner, self._state, chunks, page_size=self._state.page_size, groups=groups, scored=scored)

    def prepare(self, *, within_s: float) -> None:
        """Does nothing."""


class GraphedPrefills(EagerPrefills):
    """Replays short prefills as CUDA graphs, captured by `prepare` or on first use."""

    def __init__(
        self, state: SlotState, runners: Sequence[ModelRunner], graph_capture: GraphCapture, *, budget: int
    ) -> None:
        super().__init__(state)
        self._runners, self._graph_capture = runners, graph_capture
        self._sizes = graph_sizes(budget)
        self._graphs: dict[tuple[ModelRunner, int], CapturedGraph[Tensor]] = {}

    def run(
        self,
        runner: ModelRunner,
        chunks: list[Chunk],
        groups: PrefixGroups | None = None,
        scored: Sequence[int] = (),
    ) -> Tensor:
        """Replays the graph of the smallest size that fits; runs eagerly without one, and where tokens are scored."""
        tokens = total_tokens(chunks)
        size = next((size for size in self._sizes if size >= tokens), None)
        if size is None or len(chunks) > MAX_CHUNKS or any(scored):
            return super().run(runner, chunks, groups, scored)
        graph = self._graph(runner, size)
        graph.buffers.copy_(self._state.upload(pack_chunks(chunks, size, dummy=self._state.dummy)))
        graph.replay()
        return graph.buffers.new_empty(0, 2, dtype=torch.float32)

    def prepare(self, *, within_s: float) -> None:
        """Captures graphs of all models and sizes for at most `within_s` seconds."""
        began = time.perf_counter()
        for size in reversed(self._sizes):  # largest first: the others then fit into the memory that it took
            for runner in self._runners:
                if time.perf_counter() - began > within_s:
                    return
                self._graph(runner, size)

    def _graph(self, runner: ModelRunner, size: int) -> CapturedGraph[Tensor]:
        """Returns the graph of this model and size; captures it on first use."""
        if (runner, size) not in self._graphs:
            self._graphs[runner, size] = self._graph_capture.capture(
                lambda: prefill_dummy(runner, self._state, size),
                lambda packed: prefill_packed(runner, self._state, packed, size),
            )
        return self._graphs[runner, size]
