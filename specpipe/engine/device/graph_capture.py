"""Captures CUDA graphs: what was launched once, one kernel at a time, is launched again as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class GraphCapture:
    """Graphs of one CUDA device in one memory pool: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self.captures = 0

    def capture(self, rehearse: Callable[[], T], work: Callable[[T], object]) -> tuple[torch.cuda.CUDAGraph, T]:
        """→ a graph of `work`, and what `rehearse` made for it.

        The warm_up launches the same: that compiles kernels and sets up libraries, on the stream that captures. What
        it returns lies outside the pool, so that the host may copy it while the next graph runs.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            made = rehearse()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A Ray actor has other CUDA threads: only this one's unsafe calls may void a capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work(made)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self.captures += 1
        return graph, made
