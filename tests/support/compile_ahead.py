"""Compiles a small engine's kernels ahead for an H200, without a GPU, and prints a summary as JSON.

`ahead`: how many kernels were compiled ahead; `later`: what the same rounds and prefills, and catching up of all
lengths, compiled after that; `others`: what another thread's launch met meanwhile; `found`: how many kernels further
engines would need beyond those. Runs in a process of its own, for the reasons of compile_kernels.py.
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import torch
from compile_kernels import NoDevice
from small_models import small_config
from triton import knobs
from triton.runtime import driver

from specpipe.benchmark.model_shapes import config_of
from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.prefill import prefill
from specpipe.engine.loading.linear_modules import quantize_linears
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.text_decoder import TokenizerDecoder
from specpipe.models.loader import outline_of
from specpipe_kernels import timestamp
from specpipe_kernels.runtime.compile_ahead import CompileAhead, launches_skipped

CHOICES: list[tuple[ProposerName, int]] = [("none", 0), ("draft", 1)]
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, min_tokens=2, repetition_penalty=1.2, logprobs=3)
FAMILIES = ("gemma2", "gpt2", "gpt_oss", "mistral", "qwen3")


def outline_engine(kind: str = "", *, draft_fp8: bool = False) -> Engine:
    """Returns an engine of the benchmark's smallest shape, or of a model family's."""
    config = EngineConfig(slots=5, max_model_len=290, max_k=1, prefill_budget=48, proposer="draft", page_size=16)

    def runner(*, fp8: bool) -> ModelRunner:
        shape = small_config(kind) if kind else config_of("small")
        model = outline_of(shape, torch.bfloat16)
        if fp8:
            quantize_linears(model)
        return ModelRunner(model, vocab_size=shape.vocab_size, context_length=304, page_size=config.page_size)

    target, draft = runner(fp8=False), runner(fp8=draft_fp8)
    return Engine(target, draft, config=config, decoder=TokenizerDecoder(None), eos_ids=(0,), num_pages=2)


def found(engine: Engine, sampling: SamplingParams) -> int:
    """Returns the number of kernels that the engine would compile."""
    names: set[str] = set()

    def note(*, fn: Any, key: str, **_: Any) -> bool:
        names.add(fn.name + key)
        return True

    knobs.runtime.jit_cache_hook = note
    engine.warm_up.run_all(sampling, CHOICES)
    knobs.runtime.jit_cache_hook = None
    return len(names)


def catch_up(engine: Engine) -> None:
    """Lets the draft model process tokens that rows of all lengths generated without it."""
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
    ahead = CompileAhead(lambda: outline_engine().warm_up.run_all(SamplingParams(), CHOICES), threads=2).wait()
    later: list[str] = []
    others: list[str] = []
    knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: later.append(fn.name)
    with launches_skipped():
        engine = outline_engine()
        engine.warm_up.run_all(SamplingParams(), CHOICES)
        for lengths in ([1], [9, 5], [30, 1, 7], [33], [12, 11, 10, 9, 3]):
            engine.warm_up.prefill(lengths)
        catch_up(engine)
        launch_elsewhere(others)
        new = {kind: found(outline_engine(kind), SamplingParams()) for kind in FAMILIES}
        new["fp8"] = found(outline_engine(draft_fp8=True), SamplingParams())
        new["sampled"] = found(outline_engine(), SAMPLED)
    print(json.dumps({"ahead": ahead, "later": later, "others": others, "found": new}))


if __name__ == "__main__":
    driver.set_active(NoDevice())
    main()
