"""Counter of compiled kernels and captured graphs during a measurement.

Compiling a kernel or capturing a graph takes up to seconds. It happens on a machine's first run only, so a measurement
reports it and does not count it as speed.
"""

from __future__ import annotations

from typing import Any

from specpipe.engine.engine import Engine


class CompilationCounter:
    """Context manager that counts compilations and captures while its block runs.

    At most one may be active in a process: Triton has one hook.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kernels: list[str] = []
        """Names of Triton kernels, one entry for each variant that was compiled or read from the disk cache."""
        self.graphs = 0
        """CUDA graphs captured by the engine; set when the block ends."""

    def __enter__(self) -> CompilationCounter:
        self._graphs_before = self._engine.graphs_captured
        if self._engine.target.device.type == "cuda":
            from triton import knobs

            knobs.runtime.jit_post_compile_hook = self._on_compiled
        return self

    def __exit__(self, *error: object) -> None:
        self.graphs = self._engine.graphs_captured - self._graphs_before
        if self._engine.target.device.type == "cuda":
            from triton import knobs

            knobs.runtime.jit_post_compile_hook = None

    def _on_compiled(self, *, fn: Any, **_: Any) -> None:
        self.kernels.append(fn.name)
