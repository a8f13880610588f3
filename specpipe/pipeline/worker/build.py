"""A worker's parts, from the job: tokenizer, request builder and engine. Torch is imported here, on the worker."""

from __future__ import annotations

import dataclasses
import logging
import socket
import time
from typing import TYPE_CHECKING

from specpipe.core import Profile, ProposerName, resolve_dtype
from specpipe.data.requests.request_builder import EncoderProtocol, RequestBuilder
from specpipe.errors import MachineError, ModelError
from specpipe.job import JobSpec
from specpipe.models.source import ModelSource, Role, resolve
from specpipe.pipeline.failures import is_out_of_memory
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.speculation.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile

if TYPE_CHECKING:
    from specpipe.engine.engine import Engine

log = logging.getLogger(__name__)
_PROFILE_S = 2.0


def build_parts(config: WorkerConfig) -> WorkerParts:
    """Load the pair onto this worker's device. Raises ModelError or MachineError."""
    import torch

    from specpipe.engine.build import PREPARE_S, EngineSpec, build_engine
    from specpipe.models.tokenizer import PromptEncoder, load_tokenizer

    began = time.perf_counter()
    torch.set_num_threads(config.threads)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            f"Ray gave a GPU to the worker on {socket.gethostname()}, but torch {torch.__version__} cannot use it. "
            "Install a torch with CUDA support that fits the driver, or set model.device: cpu"
        )
    model, trust = config.job.model, config.job.model.trust_remote_code
    target = _here(config, config.target, "target")
    draft = _here(config, config.draft, "draft") if config.draft is not None else None
    tokenizer = load_tokenizer(target, trust_remote_code=trust, chat_template=model.chat_template)
    encoder = PromptEncoder(
        tokenizer,
        system_prompt=config.job.data.system_prompt,
        template_kwargs=dict(model.chat_template_kwargs),
        name=target.name,
    )
    dtype = resolve_dtype(model.dtype, config.device)
    sampling, choices = config.job.sampling_params(), _choices(config.job)
    engine = build_engine(
        EngineSpec(
            target=target,
            draft=draft,
            device=config.device,
            dtype=dtype,
            draft_dtype=model.draft_dtype,
            config=config.job.engine_config(model.max_model_len or 0),
            trust_remote_code=trust,
            sampling=sampling,
            choices=choices,
        )
    )
    engine.prepare(sampling, choices, within_s=PREPARE_S)
    max_model_len = engine.config.max_model_len
    builder = make_builder(config.job, encoder, max_model_len=max_model_len, vocab_size=engine.target.vocab_size)
    name = torch.cuda.get_device_name() if config.device == "cuda" else f"cpu, {config.threads} threads"
    facts = {"device": name, "dtype": dtype, "model_load_s": time.perf_counter() - began}
    profile = _profile(engine, config.job) if config.job.speculation.policy == "goodput" else Profile()
    return WorkerParts(engine=engine, builder=builder, facts=facts, profile=profile)


def _profile(engine: Engine, job: JobSpec) -> Profile:
    """A policy without it begins with what real rounds show: no reason to end a worker."""
    try:
        shapes = rounds_to_profile(engine.config.slots, engine.config.max_k, engine.proposers)
        return engine.profile(job.sampling_params(), shapes, context=PROFILED_CONTEXT, within_s=_PROFILE_S)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        log.warning("rounds could not be timed before the first row: %s: %s", type(error).__name__, error)
        return Profile()


def _choices(job: JobSpec) -> tuple[tuple[ProposerName, int], ...]:
    """Rounds that plans of the job may ask for."""
    widest = job.speculation.max_k
    ks = range(1, widest + 1) if job.speculation.policy == "goodput" else (widest,)
    return ("none", 0), *((proposer, k) for proposer in job.proposers for k in ks)


def make_builder(job: JobSpec, encoder: EncoderProtocol, *, max_model_len: int, vocab_size: int) -> RequestBuilder:
    return RequestBuilder(
        encoder=encoder,
        sampling=job.sampling_params(),
        job_seed=job.seed,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        prompt_column=job.data.prompt,
        truncate=job.data.on_too_long == "truncate_left",
    )


def _here(config: WorkerConfig, source: ModelSource, role: Role) -> ModelSource:
    """The same model on this machine. Raises ModelError when it is another one here."""
    name = source.name
    if not name.startswith("builtin:") and name.count("/") == 1 and name[0] not in "./~" and "@" not in name:
        name = f"{name}@{source.revision}" if len(source.revision) == 40 else name
    found = find_model(config.job, name, role)
    if found.revision != source.revision:
        raise ModelError(
            f"model {source.name} is revision {found.revision} on {socket.gethostname()} and {source.revision} where "
            "the run was started; expected the same files on every machine"
        )
    return dataclasses.replace(found, name=source.name)


def find_model(job: JobSpec, name: str, role: Role) -> ModelSource:
    """A model, as far as the job trusts it. Raises ModelError."""
    model = job.model
    return resolve(name, role, trust_remote_code=model.trust_remote_code, allow_pickle=model.allow_pickle)
