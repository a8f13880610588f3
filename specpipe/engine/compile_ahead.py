"""Compiles an engine's kernels while its weights are being loaded: on a GPU, and only there."""

from __future__ import annotations

import logging
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
    """The kernels of rounds and prefills of an engine, compiled in other threads until the `with` block ends.

    What cannot be compiled ahead is compiled when it is needed: slower, and no error.
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
        """outlines: of the target, and of the draft if there is one (`specpipe.models.loader.outline_of`). The rest
        is as the engine will have it, sampling and choices as `Engine.prepare` will."""
        self._compiling: CompileAhead | None = None
        with self._forgiving():
            target, draft = [*outlines(), None][:2]
            assert target is not None
            engine = Engine(target, draft, config=config, decoder=decoder, eos_ids=eos_ids, num_pages=2)
            self._compiling = CompileAhead(lambda: engine.warm_up.run_all(sampling, choices))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        """Waits until all are compiled and loaded."""
        began = time.perf_counter()
        with self._forgiving():
            count = 0 if self._compiling is None else self._compiling.wait()
            log.debug("%d kernels compiled ahead, %.1f s waited for", count, time.perf_counter() - began)

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the first round meets it again and tells it
            log.info("kernels will be compiled when they are needed: %s: %s", type(error).__name__, error)
