"""Seconds from a command to its engine's first token."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from specpipe.benchmark.synthetic_engine import EngineBench, build_synthetic_engine, random_requests, run_requests
from specpipe.core import SamplingParams
from specpipe.engine.build import PREPARE_S
from specpipe.engine.engine import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """Seconds from the command to the first token of an engine."""

    import_s: float
    """torch and specpipe."""
    build_s: float
    """Weights, made at random on the device, KV memory, and meanwhile compiling kernels that no cache holds."""
    prepare_s: float
    """Capturing graphs, the largest batches first, for at most `PREPARE_S` seconds."""
    first_token_s: float
    """Of one row, prefill included."""
    total_s: float


def start(bench: EngineBench, began: float) -> tuple[Engine, StartUp]:
    """A prepared engine, and where the seconds from `began` (`time.perf_counter`) to its first token went."""
    marks = [began, time.perf_counter()]
    engine = build_synthetic_engine(bench)
    marks.append(time.perf_counter())
    engine.prepare(SamplingParams(), bench.choices, within_s=PREPARE_S)
    marks.append(time.perf_counter())
    run_requests(engine, random_requests([(bench.prompt_tokens, 1)], engine.target.vocab_size), bench.ks[0])
    marks.append(time.perf_counter())
    imported, built, prepared, first = (after - before for before, after in itertools.pairwise(marks))
    engine.prepare(SamplingParams(), bench.choices)  # the rest: no figure pays for a capture
    return engine, StartUp(
        import_s=imported, build_s=built, prepare_s=prepared, first_token_s=first, total_s=marks[-1] - began
    )
