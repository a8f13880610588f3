"""Prefills of few tokens as CUDA graphs, padded to one of a few sizes.

With few slots a row is prefilled almost alone, and launching the kernels of all layers takes the host longer than the
device takes to run them: 20 ms against 8 for 270 tokens of an 8B and a 1B model (docs/performance.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.prefill import LEAST_QUERIES, prefill
from specpipe.engine.state.chunks import Chunk, total_tokens
from specpipe.engine.state.slot_state import SlotState

SIZES = (64, 128, 256, 384, 512, 640, 768, 1024)
"""Tokens. Beyond the last the device is the slower one. Between them padding costs little: the vendor's products have
tiles of 128 tokens and more."""
MOST_CHUNKS = 64


def sizes_for(budget: int) -> tuple[int, ...]:
    """Those that prefills of at most `budget` tokens need."""
    return tuple(size for before, size in zip((0, *SIZES), SIZES, strict=False) if before < budget)


def padded(chunks: Sequence[Chunk], size: int, *, dummy: int) -> NDArray[np.int64]:
    """What `feed_padded` reads. dummy: a slot whose block table is all trash, and that padding belongs to."""
    packed = np.zeros(sum(_layout(size)), dtype=np.int64)
    token_slots, positions, starts, slots, ends = np.split(packed, np.cumsum(_layout(size))[:-1])
    token_slots[:] = slots[:] = dummy
    end = 0
    for i, (slot, start, stop) in enumerate(chunks):
        begin, end = end, end + stop - start
        token_slots[begin:end], positions[begin:end] = slot, np.arange(start, stop)
        starts[i], slots[i], ends[i + 1 :] = start, slot, end
    return packed


def feed_padded(runner: ModelRunner, state: SlotState, packed: Tensor, size: int) -> None:
    """One forward over `size` tokens, as `padded` laid them out: those of at most `MOST_CHUNKS` chunks, and behind them
    tokens of no row. The chunks' KV is valid afterwards."""
    token_slots, positions, starts, slots, ends = packed.split(_layout(size))
    with torch.inference_mode():
        runner.forward(
            state.tokens[token_slots, positions],
            positions,
            block_tables=state.block_table.index_select(0, slots),
            cu_queries=ends.to(torch.int32),
            starts=starts,
            max_queries=max(size, LEAST_QUERIES),
            keep=None,
        )


def rehearse_padded(runner: ModelRunner, state: SlotState, size: int) -> Tensor:
    """One that changes nothing; → what it read, to be overwritten."""
    packed = state.upload(padded([], size, dummy=state.dummy))
    feed_padded(runner, state, packed, size)
    return packed


def _layout(size: int) -> list[int]:
    """Slots and positions of tokens, starts and slots of chunks, and where chunks end. All but the last are of whole 16
    bytes: kernels are compiled for where their inputs begin."""
    return [size, size, MOST_CHUNKS, MOST_CHUNKS, MOST_CHUNKS + 1]


class Prefills(Protocol):
    """Runs prefills of a budget's tokens or fewer."""

    def run(self, runner: ModelRunner, chunks: list[Chunk]) -> None: ...

    def prepare(self, *, within_s: float) -> None:
        """Does ahead of time what first prefills would have to do, as far as the time suffices."""
        ...


class EagerPrefills:
    """Every operation launched as it comes: for CPUs."""

    def __init__(self, state: SlotState) -> None:
        self._state = state

    def run(self, runner: ModelRunner, chunks: list[Chunk]) -> None:
        prefill(runner, self._state, chunks, page_size=self._state.page_size)

    def prepare(self, *, within_s: float) -> None:
        """Nothing."""


class GraphedPrefills(EagerPrefills):
    """Short ones as graphs, which are captured when they are needed, or before (`prepare`)."""

    def __init__(
        self, state: SlotState, runners: Sequence[ModelRunner], graph_capture: GraphCapture, *, budget: int
    ) -> None:
        super().__init__(state)
        self._runners, self._graph_capture = runners, graph_capture
        self._sizes = sizes_for(budget)
        self._graphs: dict[tuple[ModelRunner, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def run(self, runner: ModelRunner, chunks: list[Chunk]) -> None:
        tokens = total_tokens(chunks)
        size = next((size for size in self._sizes if size >= tokens), None)
        if size is None or len(chunks) > MOST_CHUNKS:
            super().run(runner, chunks)
            return
        graph, packed = self._captured(runner, size)
        packed.copy_(self._state.upload(padded(chunks, size, dummy=self._state.dummy)))
        graph.replay()

    def prepare(self, *, within_s: float) -> None:
        began = time.perf_counter()
        for size in reversed(self._sizes):  # largest first: the others then fit into the memory that it took
            for runner in self._runners:
                if time.perf_counter() - began > within_s:
                    return
                self._captured(runner, size)

    def _captured(self, runner: ModelRunner, size: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        if (runner, size) not in self._graphs:
            self._graphs[runner, size] = self._graph_capture.capture(
                lambda: rehearse_padded(runner, self._state, size),
                lambda packed: feed_padded(runner, self._state, packed, size),
            )
        return self._graphs[runner, size]
