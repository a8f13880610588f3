"""Compilation of an engine's kernels while its weights are being loaded; on a GPU only."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.state.text_decoder import TextDecoder
from specpipe_kernels.runtime.compile_ahead import CompileAhead

log = logging.getLogger(__name__)


class EngineCompileAhead:
    """Context manager that compiles the kernels of an engine's rounds and prefills in other threads.

    A kernel that cannot be compiled ahead is compiled on first use: slower, but no error.
    """

    def __init__(
        self,
        outlines: Callable[[], Sequence[ModelRunner]],
        config: EngineConfig,
        decoder: TextDecoder,
        eos_ids: Sequence[int],
        *,
        sampling: SamplingParams,
        choices: Sequence[tuple[ProposerName, int]],
    ) -> None:
        """Starts compiling.

        outlines: makes runners of weightless models (`specpipe.models.loader.outline_of`), the target's and, if there
        is one, the draft's. config, decoder and eos_ids are the engine's; sampling and choices are the arguments of
        `Engine.prepare`.
        """
        self._compiling: CompileAhead | None = None
        with self._log_errors():
            target, draft = [*outlines(), None][:2]
            assert target is not None
            engine = Engine(target, draft, config=config, decoder=decoder, eos_ids=eos_ids, num_pages=2)
            self._compiling = CompileAhead(lambda: _launch_all(engine, sampling, choices))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        """Waits until all kernels are compiled and loaded."""
        began = time.perf_counter()
        with self._log_errors():
            count = 0 if self._compiling is None else self._compiling.wait()
            log.debug("%d kernels compiled ahead, %.1f s waited for", count, time.perf_counter() - began)

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        """Logs any exception and continues: the first round meets the same error and raises it."""
        try:
            yield
        except Exception as error:
            log.info("kernels will be compiled when they are needed: %s: %s", type(error).__name__, error)


def _launch_all(engine: Engine, sampling: SamplingParams, choices: Sequence[tuple[ProposerName, int]]) -> None:
    """Launches all kernels of rounds and prefills, then those that dense copies of weights need besides."""
    engine.warm_up.run_all(sampling, choices)
    runners = [runner for runner in (engine.draft, engine.target) if runner is not None and engine.config.dense_copies]
    for runner in runners:
        runner.keep_dense_copies(sys.maxsize)
    if any(runner.copy_bytes for runner in runners):
        engine.warm_up.largest_prefill()
