"""Time from the start of a command to the first token of its engine."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from specpipe.benchmark.bench_config import EngineBench
from specpipe.benchmark.synthetic_engine import build_synthetic_engine, random_requests, run_requests
from specpipe.core import SamplingParams
from specpipe.engine.build import PREPARE_S
from specpipe.engine.engine import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUpTime:
    """Seconds from the start of the command to the first token, by stage."""

    import_s: float
    """Importing torch and specpipe."""
    build_s: float
    """Random weights on the device, KV memory; kernels that no cache holds are compiled at the same time."""
    prepare_s: float
    """Capturing graphs, the largest batches first, for at most `PREPARE_S` seconds."""
    first_token_s: float
    """Prefill and first round of one row."""
    total_s: float


def measure_start_up(bench: EngineBench, began: float) -> tuple[Engine, StartUpTime]:
    """Builds an engine, generates one token and returns both the engine and the times.

    As in a worker, graphs are captured for at most `PREPARE_S` seconds before the first token; some may be missing.
    `began`: `time.perf_counter()` at the start of the command.
    """
    marks = [began, time.perf_counter()]
    engine = build_synthetic_engine(bench)
    marks.append(time.perf_counter())
    engine.prepare(SamplingParams(), bench.choices, within_s=PREPARE_S)
    marks.append(time.perf_counter())
    run_requests(engine, random_requests([(bench.prompt_tokens, 1)], engine.target.vocab_size), bench.ks[0])
    marks.append(time.perf_counter())
    imported, built, prepared, first = (after - before for before, after in itertools.pairwise(marks))
    return engine, StartUpTime(
        import_s=imported, build_s=built, prepare_s=prepared, first_token_s=first, total_s=marks[-1] - began
    )
