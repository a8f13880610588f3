"""Loads a pair onto a device and sizes its KV memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specpipe.core import DeviceName, DraftDtypeChoice, DtypeName, EngineConfig, ProposerName, SamplingParams
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.state.text_decoder import TextDecoder, TokenizerDecoder
from specpipe.errors import MachineError
from specpipe.models.loader import load_config, load_model, outline_of
from specpipe.models.source import ModelSource
from specpipe.models.support import check_pair, check_support, context_length
from specpipe.models.tokenizer import eos_token_ids, load_tokenizer

CPU_MEMORY_SHARE = 0.25  # of the machine, for KV pages: weights, activations and the user's own work need the rest
GPU_MEMORY_SHARE = 0.95  # of what is free beside activations; the rest is what CUDA takes for the graphs themselves
PREPARE_S = 2.0  # of capturing graphs before the first row; those that are missing then are captured when needed
ALLOCATOR_SLACK = 1.25  # bytes that torch reserves for activations over those in use at once


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """A pair and how to run it: small, picklable, the same on every worker."""

    target: ModelSource
    draft: ModelSource | None
    """None where no draft model drafts."""
    device: DeviceName
    dtype: DtypeName
    draft_dtype: DraftDtypeChoice = "auto"
    """Of the draft's weights; auto: dtype."""
    config: EngineConfig
    """A max_model_len of 0 becomes what both models allow."""
    trust_remote_code: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """What rows ask for as a rule."""
    choices: tuple[tuple[ProposerName, int], ...] = ()
    """Proposers and K of the rounds to come: on a GPU their kernels are compiled while the weights are loaded."""

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)


def build_engine(spec: EngineSpec) -> Engine:
    """Loads, checks and sizes. Raises ModelError for a model or pair that cannot be served, MachineError for memory."""
    register()
    config = _checked_config(spec)
    tokenizer = load_tokenizer(spec.target, trust_remote_code=spec.trust_remote_code)
    if spec.draft is not None:
        draft_tokenizer = load_tokenizer(spec.draft, trust_remote_code=spec.trust_remote_code)
        check_pair(tokenizer, draft_tokenizer, target_name=spec.target.name, draft_name=spec.draft.name)
    decoder, eos_ids = TokenizerDecoder(tokenizer), eos_token_ids(spec.target, tokenizer)
    dtype, trust = getattr(torch, spec.dtype), spec.trust_remote_code
    with _kernels_ahead(spec, config, decoder, eos_ids) if spec.device == "cuda" else nullcontext():
        runners = [
            _runner(load_model(source, spec.device, dtype, trust_remote_code=trust), source, spec, config)
            for source in spec.sources
        ]
    return sized_engine(runners, config, decoder, eos_ids)


def _kernels_ahead(
    spec: EngineSpec, config: EngineConfig, decoder: TextDecoder, eos_ids: Sequence[int]
) -> EngineCompileAhead:
    def outline(source: ModelSource) -> ModelRunner:
        trust, dtype = spec.trust_remote_code, getattr(torch, spec.dtype)
        model = outline_of(load_config(source, trust_remote_code=trust), dtype, trust_remote_code=trust)
        return _runner(model, source, spec, config)

    return EngineCompileAhead(
        lambda: [outline(source) for source in spec.sources], config, decoder, eos_ids,
        sampling=spec.sampling, choices=spec.choices,
    )  # fmt: skip


def sized_engine(
    runners: Sequence[ModelRunner], config: EngineConfig, decoder: TextDecoder, eos_ids: Sequence[int]
) -> Engine:
    """runners: the target, and the draft if there is one. With as much KV memory as the device has room for.

    Raises MachineError where that is not one page.
    """

    def make(pages: int) -> Engine:
        draft = runners[1] if len(runners) > 1 else None
        return Engine(runners[0], draft, config=config, decoder=decoder, eos_ids=eos_ids, num_pages=pages)

    on_cpu = runners[0].device.type == "cpu"
    return make(_num_pages(runners, config, _cpu_budget() if on_cpu else _gpu_budget(make(1))))


def _checked_config(spec: EngineSpec) -> EngineConfig:
    configs = [load_config(source, trust_remote_code=spec.trust_remote_code) for source in spec.sources]
    max_model_len = spec.config.max_model_len or min(context_length(c) for c in configs)
    for source, config in zip(spec.sources, configs, strict=True):
        check_support(config, name=source.name, max_model_len=max_model_len, device=spec.device, dtype=spec.dtype)
    return replace(spec.config, max_model_len=max_model_len)


def _runner(model: Any, source: ModelSource, spec: EngineSpec, config: EngineConfig) -> ModelRunner:
    return ModelRunner(
        model,
        vocab_size=model.config.vocab_size,
        context_length=context_length(model.config),
        page_size=config.page_size,
        fp8=source is spec.draft and spec.draft_dtype == "fp8",
    )


def _num_pages(runners: Sequence[ModelRunner], config: EngineConfig, budget: int) -> int:
    """As many pages as all slots can ever use, or as `budget` bytes hold; the trash page included."""
    per_page = sum(runner.page_bytes for runner in runners)
    wanted = config.slots * config.pages_per_row
    affordable = max(0, budget) // per_page
    if affordable < 1:
        raise MachineError(
            f"no memory is left for KV pages on {runners[0].device}: a page of {config.page_size} tokens needs "
            f"{per_page / 2**20:.1f} MiB; lower workers.slots or speculation.num_speculative_tokens, or choose "
            "smaller models"
        )
    return min(wanted, affordable) + 1


def _cpu_budget() -> int:
    """Bytes for KV pages."""
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_MEMORY_SHARE)


def _gpu_budget(engine: Engine) -> int:
    """Likewise, beside an engine like this one, which has the trash page alone: its activations are measured.

    Graphs keep the memory of the widest round and of short prefills to themselves, so it adds to that of a prefill.
    """
    target, config, warm_up = engine.target, engine.config, engine.warm_up
    works = (warm_up.widest_round, warm_up.widest_graphed_prefill, warm_up.widest_prefill)
    activations = sum(_peak_bytes(work, target.device) for work in works)
    # Rows that sample keep the draft's logits until verification; those of a step may be there twice.
    logits = (config.max_k + 1) * config.slots * target.vocab_size * target.dtype.itemsize
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(target.device)
    return int(GPU_MEMORY_SHARE * (free - ALLOCATOR_SLACK * (activations + logits)))


def _peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
