"""Compilation of Triton kernels before their first launch, several at a time and in the background.

The kernels to compile are found by running the code that launches them on tensors of torch's `meta` device. These have
shapes and alignments but no memory, so it takes milliseconds and needs neither weights nor a free GPU. Triton's passes,
ptxas and the C compiler release Python's global lock; only tracing a kernel's source, a seventh of the work, holds it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

MAX_THREADS = 16


@contextmanager
def launches_skipped() -> Iterator[None]:
    """Context in which kernels that this thread launches are compiled but not run."""
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
    """Compiles the kernels that `work` would launch. Starts at once; call `wait`. Only one may be active at a time."""

    def __init__(self, work: Callable[[], object], *, threads: int | None = None) -> None:
        """Starts `work`, which launches kernels on meta tensors, in a thread of its own.

        threads: number of compiler threads; None: one for each usable core, at most MAX_THREADS.
        """
        self._compilers = _Compilers(threads or min(MAX_THREADS, len(os.sched_getaffinity(0))))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compile-ahead")
        self._done = self._worker.submit(self._compile, work)

    def wait(self) -> int:
        """Waits for the end and returns the number of kernels compiled or loaded from Triton's cache on disk.

        Raises the exception of `work` or of a compilation.
        """
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
