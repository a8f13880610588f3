"""Compile a small engine's kernels ahead for an H200, without a GPU, and print what happened as JSON.

`ahead`: how many kernels were compiled ahead; `later`: what the same rounds and prefills, and catching up of all
lengths, compiled after that; `others`: what another thread's launch met meanwhile. Runs in a process of its own, for
the reasons of compile_kernels.py.
"""

from __future__ import annotations

import itertools
import json
import threading

import torch
from compile_kernels import NoDevice
from triton import knobs
from triton.runtime import driver

from specpipe.benchmark.shapes import config_of
from specpipe.core import EngineConfig, SamplingParams
from specpipe.engine.attention import register
from specpipe.engine.decoder import TokenizerDecoder
from specpipe.engine.engine import Engine
from specpipe.engine.prefill import Chunk, prefill
from specpipe.engine.runner import ModelRunner
from specpipe.models.loader import outline_of
from specpipe_kernels import timestamp
from specpipe_kernels.compile_ahead import CompileAhead, launches_skipped


def outline_engine() -> Engine:
    config = EngineConfig(slots=5, max_model_len=290, max_k=1, prefill_budget=48, proposer="draft", page_size=16)

    def runner() -> ModelRunner:
        model = outline_of(config_of("small"), torch.bfloat16)
        return ModelRunner(model, vocab_size=512, context_length=304, page_size=config.page_size)

    return Engine(runner(), runner(), config=config, decoder=TokenizerDecoder(None), eos_ids=(0,), num_pages=2)


def catch_up(engine: Engine) -> None:
    """The draft model reads what rows of all lengths have generated without it."""
    assert engine.draft is not None
    for tokens, first in itertools.product((1, 3, 7, 15, 33), (0, 13, 100, 240, 256)):
        for rows in range(1, 1 + min(engine.config.slots, engine.config.prefill_budget // tokens)):
            chunks = [Chunk(0, first, first + tokens)] * rows
            prefill(engine.draft, engine._state, chunks, page_size=engine.config.page_size)


def launch_elsewhere(met: list[str]) -> None:
    def launch() -> None:
        try:
            timestamp(torch.zeros(1, dtype=torch.int64, device="meta"), 0)
        except AttributeError as error:  # this driver launches nothing
            met.append(str(error))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()


def main() -> None:
    register()
    choices = [("none", 0), ("draft", 1)]
    ahead = CompileAhead(lambda: outline_engine().rehearse(SamplingParams(), choices), threads=2).wait()
    later: list[str] = []
    others: list[str] = []
    knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: later.append(fn.name)
    with launches_skipped():
        engine = outline_engine()
        engine.rehearse(SamplingParams(), choices)
        for lengths in ([1], [9, 5], [30, 1, 7], [33], [12, 11, 10, 9, 3]):
            engine._rehearsal.prefill(lengths)
        catch_up(engine)
        launch_elsewhere(others)
    print(json.dumps({"ahead": ahead, "later": later, "others": others}))


if __name__ == "__main__":
    driver.set_active(NoDevice())
    main()
