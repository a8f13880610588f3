"""What a measured job met for the first time: kernels that had to be compiled and graphs that had to be captured.

Either takes up to seconds, which belong to a machine's first run and not to what is compared.
"""

from __future__ import annotations

from typing import Any

from specpipe.engine.engine import Engine


class Late:
    """Counts while its `with` block runs. One at a time in a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kernels: list[str] = []
        """Names of Triton kernels, one for each variant that was compiled or read from the cache on disk."""
        self.graphs = 0

    def __enter__(self) -> Late:
        self._began = self._engine.graphs_captured
        if self._engine.target.device.type == "cuda":
            from triton import knobs

            knobs.runtime.jit_post_compile_hook = self._compiled
        return self

    def __exit__(self, *error: object) -> None:
        self.graphs = self._engine.graphs_captured - self._began
        if self._engine.target.device.type == "cuda":
            from triton import knobs

            knobs.runtime.jit_post_compile_hook = None

    def _compiled(self, *, fn: Any, **_: Any) -> None:
        self.kernels.append(fn.name)
