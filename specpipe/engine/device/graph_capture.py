"""Captures work as CUDA graphs and replays each with one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import counters_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CapturedGraph(Generic[T]):
    """A CUDA graph and the owner of the tensors that it reads and writes.

    A graph holds addresses, not references: the tensors here stay valid as long as the graph does.
    """

    graph: torch.cuda.CUDAGraph
    buffers: T
    """Tensors that were made for this graph, outside of its memory pool."""
    counters: tuple[Tensor, ...] = ()
    """The kernels' arrival counters, which all graphs of a device share."""

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        self.graph.replay()


class GraphCapture:
    """Captures graphs of one CUDA device in one memory pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self.captures = 0
        """Graphs captured so far."""

    def capture(self, warm_up: Callable[[], T], work: Callable[[T], object]) -> CapturedGraph[T]:
        """Returns a graph of `work`, and in it the buffers that `warm_up` made for `work`.

        warm_up launches the same work once on the capturing stream: that compiles kernels and initialises libraries.
        Its buffers lie outside the pool, so that the host may copy a result while the next graph runs.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            buffers = warm_up()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A Ray actor has other CUDA threads: only this one's unsafe calls may void a capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work(buffers)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self.captures += 1
        return CapturedGraph(graph, buffers, counters_of(self._device))
