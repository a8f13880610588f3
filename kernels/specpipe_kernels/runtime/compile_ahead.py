"""Triton kernels compiled before their first launch, several at a time, while the caller does something else.

Which ones is found out by running the code that launches them on tensors of torch's `meta` device: they have shapes
and alignments but no memory, so that this takes milliseconds and neither weights nor a free GPU. Triton's passes, ptxas
and the C compiler all let other Python threads run; only tracing a kernel's source, a seventh of the work, takes turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

MOST_THREADS = 16


@contextmanager
def launches_skipped() -> Iterator[None]:
    """Inside, kernels that this thread launches are compiled and not run."""
    from triton.runtime import JITFunction

    me, run = threading.get_ident(), JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(kernel, *args, grid=grid, warmup=warmup or threading.get_ident() == me, **options)

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run


class CompileAhead:
    """Compiles what `work` would launch. Begins at once; `wait` ends it. One at a time."""

    def __init__(self, work: Callable[[], object], *, threads: int | None = None) -> None:
        """work: runs kernels on meta tensors, in a thread of its own."""
        self._compilers = _Compilers(threads or min(MOST_THREADS, len(os.sched_getaffinity(0))))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compile-ahead")
        self._done = self._worker.submit(self._compile, work)

    def wait(self) -> int:
        """→ kernels that were compiled or taken from the cache on disk. Raises what `work` or a compilation raised."""
        try:
            return self._done.result()
        finally:
            self._worker.shutdown()
            self._compilers.shutdown()

    def _compile(self, work: Callable[[], object]) -> int:
        from triton import AsyncCompileMode

        with launches_skipped(), AsyncCompileMode(self._compilers) as mode:
            work()
        return len(mode.future_kernels)


class _Compilers(Executor):
    """Threads that compile kernels and load them onto the current GPU, if there is one."""

    def __init__(self, threads: int) -> None:
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile-ahead")

    def submit(self, compile_kernel: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._pool.submit(self._compile_and_load, compile_kernel, *args, **options)

    def _compile_and_load(self, compile_kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
        kernel = compile_kernel(*args, **options)
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)
            _ = kernel.run  # makes the launcher (a C module, up to triton 3.6) and loads the binary
        return kernel

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
