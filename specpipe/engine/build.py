"""Loads a pair onto a device and sizes its KV memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal

import torch

from specpipe.core import EngineConfig
from specpipe.engine.attention import register
from specpipe.engine.decoder import TokenizerDecoder
from specpipe.engine.engine import Engine
from specpipe.engine.runner import ModelRunner
from specpipe.errors import MachineError
from specpipe.models.loader import load_config, load_model
from specpipe.models.source import ModelSource
from specpipe.models.support import check_pair, check_support, context_length
from specpipe.models.tokenizer import eos_token_ids, load_tokenizer

DeviceName = Literal["cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16", "float16"]
DraftDtypeName = Literal["auto", "fp8"]

CPU_MEMORY_SHARE = 0.25  # of the machine, for KV pages: weights, activations and the user's own work need the rest
GPU_MEMORY_SHARE = 0.85  # of what is free after the weights; the rest is activations and the allocator's slack


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """A pair and how to run it: small, picklable, the same on every worker."""

    target: ModelSource
    draft: ModelSource | None
    """None unless the proposer is a draft model."""
    device: DeviceName
    dtype: DtypeName
    draft_dtype: DraftDtypeName = "auto"
    """Of the draft's weights; auto: dtype."""
    config: EngineConfig
    """A max_model_len of 0 becomes what both models allow."""
    trust_remote_code: bool = False

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
    runners = [
        _load(source, spec, config.page_size, fp8=source is spec.draft and spec.draft_dtype == "fp8")
        for source in spec.sources
    ]
    return Engine(
        runners[0],
        runners[1] if spec.draft is not None else None,
        config=config,
        decoder=TokenizerDecoder(tokenizer),
        eos_ids=eos_token_ids(spec.target, tokenizer),
        num_pages=num_pages(runners, config),
    )


def _checked_config(spec: EngineSpec) -> EngineConfig:
    configs = [load_config(source, trust_remote_code=spec.trust_remote_code) for source in spec.sources]
    max_model_len = spec.config.max_model_len or min(context_length(c) for c in configs)
    for source, config in zip(spec.sources, configs, strict=True):
        check_support(config, name=source.name, max_model_len=max_model_len, device=spec.device, dtype=spec.dtype)
    return replace(spec.config, max_model_len=max_model_len)


def _load(source: ModelSource, spec: EngineSpec, page_size: int, *, fp8: bool) -> ModelRunner:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    model = load_model(source, spec.device, dtype, trust_remote_code=spec.trust_remote_code)
    return ModelRunner(
        model,
        vocab_size=model.config.vocab_size,
        context_length=context_length(model.config),
        page_size=page_size,
        fp8=fp8,
    )


def num_pages(runners: list[ModelRunner], config: EngineConfig) -> int:
    """As many pages as all slots can ever use, or as memory holds; the trash page included."""
    per_page = sum(runner.page_bytes for runner in runners)
    wanted = config.slots * config.pages_per_row
    budget = _memory_budget(runners[0], config)
    affordable = max(0, budget) // per_page
    if affordable < 1:
        raise MachineError(
            f"no memory is left for KV pages on {runners[0].device}: a page of {config.page_size} tokens needs "
            f"{per_page / 2**20:.1f} MiB; lower workers.slots or speculation.num_speculative_tokens, or choose "
            "smaller models"
        )
    return min(wanted, affordable) + 1


def _memory_budget(target: ModelRunner, config: EngineConfig) -> int:
    """Bytes for KV pages."""
    if target.device.type == "cpu":
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_MEMORY_SHARE)
    free, _ = torch.cuda.mem_get_info(target.device)
    # Logits of every verified and drafted row of the widest round, and a copy of the drafts' for verification.
    logit_rows = config.slots * (3 * config.max_k + 1)
    return int(free * GPU_MEMORY_SHARE) - logit_rows * target.vocab_size * target.dtype.itemsize
