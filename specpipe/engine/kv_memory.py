"""Memory of an engine beside its weights: KV pages, then dense copies of 4-bit weights.

There are as many pages as the slots can use, each at its longest, or as the device has memory for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specpipe.core import ALLOCATOR_SLACK, GPU_MEMORY_SHARE, EngineConfig
from specpipe.core.host_memory import cpu_kv_budget
from specpipe.engine.engine import Engine
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.state.scored_rows import MAX_SCORED_TOKENS
from specpipe.engine.state.text_decoder import TextDecoder
from specpipe.errors import MachineError


def sized_engine(
    runners: Sequence[ModelRunner], config: EngineConfig, decoder: TextDecoder, eos_ids: Sequence[int]
) -> Engine:
    """Returns an engine with as much KV memory as it can use and the device has.

    GPU memory that is left keeps dense copies of 4-bit weights: the draft's first, which every draft token reads.

    runners: the target, and the draft if there is one. Raises MachineError where there is no memory for one page.
    """

    def make(pages: int) -> Engine:
        draft = runners[1] if len(runners) > 1 else None
        return Engine(runners[0], draft, config=config, decoder=decoder, eos_ids=eos_ids, num_pages=pages)

    on_cpu = runners[0].device.type == "cpu"
    budget = cpu_kv_budget() if on_cpu else _gpu_budget(make(1))
    pages = _num_pages(runners, config, budget)
    if config.dense_copies and not on_cpu:
        left = budget - pages * sum(runner.page_bytes for runner in runners)
        for runner in reversed(runners):
            runner.keep_dense_copies(left)
            left -= runner.copy_bytes
    return make(pages)


def _num_pages(runners: Sequence[ModelRunner], config: EngineConfig, budget: int) -> int:
    """Returns the number of pages, trash page included. budget: bytes for KV pages."""
    per_page = sum(runner.page_bytes for runner in runners)
    usable = config.slots * config.pages_per_row
    affordable = max(0, budget) // per_page
    if affordable < 1:
        raise MachineError(
            f"no memory is left for KV pages on {runners[0].device}: a page of {config.page_size} tokens needs "
            f"{per_page / 2**20:.1f} MiB; lower workers.slots or speculation.num_speculative_tokens, or choose "
            "smaller models"
        )
    return min(usable, affordable) + 1


def _gpu_budget(engine: Engine) -> int:
    """Returns the bytes for KV pages on the engine's GPU. engine: like the one to be made, with the trash page alone.

    Its activations are measured. Graphs keep the memory of the largest round and of short prefills to themselves, so
    that memory adds to the memory of a prefill.
    """
    target, config, warm_up = engine.target, engine.config, engine.warm_up
    works = (warm_up.largest_round, warm_up.largest_graphed_prefill, warm_up.largest_prefill)
    activations = sum(_peak_bytes(work, target.device) for work in works)
    # Rows that sample keep the draft's logits until verification; those of a step may exist twice.
    logits = (
        ((config.largest_k("draft") + 1) * config.slots + MAX_SCORED_TOKENS) * target.vocab_size * target.dtype.itemsize
    )
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(target.device)
    return int(GPU_MEMORY_SHARE * (free - ALLOCATOR_SLACK * (activations + logits)))


def _peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    """Returns the bytes that the work allocates at once."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
