"""Loads a pair of models onto a device and makes an engine of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specpipe.core import (
    DeviceName,
    DtypeName,
    EngineConfig,
    KVScaleTable,
    ProposerName,
    QuantizeChoice,
    SamplingParams,
)
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.kv_memory import sized_engine
from specpipe.engine.kv_scales import fix_kv_scales
from specpipe.engine.loading.linear_modules import check_fp8
from specpipe.engine.loading.load_weights import load_outline, load_weights
from specpipe.engine.state.text_decoder import TextDecoder, TokenizerDecoder
from specpipe.models.loader import load_config
from specpipe.models.source import ModelSource
from specpipe.models.support import check_pair, check_support, context_length
from specpipe.models.tokenizer import eos_token_ids, load_tokenizer

PREPARE_S = 2.0
"""Seconds for capturing graphs before the first row; the rest is captured on first use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """A pair and how to run it: small, picklable, the same on every worker."""

    target: ModelSource
    draft: ModelSource | None
    """None without a draft model."""
    device: DeviceName
    dtype: DtypeName
    quantize: QuantizeChoice = "none"
    """Number format that the target's linear layers are rounded to at load."""
    quantize_draft: QuantizeChoice = "none"
    """The same for the draft."""
    config: EngineConfig
    """A max_model_len of 0 becomes the context length that both models have."""
    trust_remote_code: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Sampling parameters of most rows."""
    kv_scales: KVScaleTable = field(default_factory=dict)
    """Scales of KV pages in 8 bits of earlier starts."""
    kv_prompts: tuple[tuple[int, ...], ...] = ()
    """Prompts (token ids) on which scales are measured that are neither given nor in the checkpoint."""
    choices: tuple[tuple[ProposerName, int], ...] = ()
    """Proposers and K of expected rounds: on a GPU their kernels are compiled while the weights are loaded."""

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        """The target and, if there is one, the draft."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def kv_keys(self) -> tuple[str, ...]:
        """Keys of the models in a table of KV scales. Weights that are rounded at load have other scales."""
        formats = (("target", self.quantize), ("draft", self.quantize_draft))
        return tuple(
            " ".join([role, source.name, source.revision, *([to] if to != "none" else [])])
            for (role, to), source in zip(formats, self.sources, strict=False)
        )

    def loading(self, source: ModelSource) -> dict[str, Any]:
        """Returns the keyword arguments of `load_weights` for the target or the draft."""
        quantize = self.quantize if source is self.target else self.quantize_draft
        return {"quantize": quantize, "trust_remote_code": self.trust_remote_code}


def build_engine(spec: EngineSpec) -> Engine:
    """Loads and checks the models and returns an engine with KV memory sized for the device.

    Raises ModelError for a model or pair that is not supported, MachineError where memory does not suffice.
    """
    register()
    config = _checked_config(spec)
    tokenizer = load_tokenizer(spec.target, trust_remote_code=spec.trust_remote_code)
    if spec.draft is not None:
        draft_tokenizer = load_tokenizer(spec.draft, trust_remote_code=spec.trust_remote_code)
        check_pair(tokenizer, draft_tokenizer, target_name=spec.target.name, draft_name=spec.draft.name)
    decoder, eos_ids = TokenizerDecoder(tokenizer), eos_token_ids(spec.target, tokenizer)
    dtype = getattr(torch, spec.dtype)
    with _compile_ahead(spec, config, decoder, eos_ids) if spec.device == "cuda" else nullcontext():
        runners = [
            _make_runner(load_weights(source, spec.device, dtype, **spec.loading(source)), config)
            for source in spec.sources
        ]
    fix_kv_scales(runners, spec.kv_keys, spec.kv_scales, spec.kv_prompts)
    return sized_engine(runners, config, decoder, eos_ids)


def _compile_ahead(
    spec: EngineSpec, config: EngineConfig, decoder: TextDecoder, eos_ids: Sequence[int]
) -> EngineCompileAhead:
    """Starts compiling the kernels of the engine of this spec."""
    dtype = getattr(torch, spec.dtype)

    def make_outline(source: ModelSource) -> ModelRunner:
        return _make_runner(load_outline(source, dtype, **spec.loading(source)), config)

    return EngineCompileAhead(
        lambda: [make_outline(source) for source in spec.sources],
        config,
        decoder,
        eos_ids,
        sampling=spec.sampling,
        choices=spec.choices,
    )


def _checked_config(spec: EngineSpec) -> EngineConfig:
    """Returns the configuration with max_model_len and a CPU's page size. Raises ModelError for unsupported models."""
    if spec.config.kv_dtype == "fp8":
        check_fp8(torch.device(spec.device), "model.kv_dtype is fp8", "leave kv_dtype out")
    configs = [load_config(source, trust_remote_code=spec.trust_remote_code) for source in spec.sources]
    max_model_len = spec.config.max_model_len or min(context_length(c) for c in configs)
    for source, config in zip(spec.sources, configs, strict=True):
        check_support(config, name=source.name, max_model_len=max_model_len)
    return replace(spec.config.on(spec.device), max_model_len=max_model_len)


def _make_runner(model: Any, config: EngineConfig) -> ModelRunner:
    """Returns a runner of the target's or draft's model."""
    return ModelRunner(
        model,
        vocab_size=model.config.vocab_size,
        context_length=context_length(model.config),
        page_size=config.page_size,
        kv_dtype=config.kv_dtype,
    )
