"""Construction of a worker's parts from the job: tokenizer, request builder and engine.

Torch is imported inside functions: the driver imports this module and needs no torch.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import socket
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from specpipe.core import DeviceName, Profile, ProposerName, Request, Shard, followed_ks, resolve_dtype
from specpipe.core.host_memory import free_memory, keep_freed_memory
from specpipe.data import read_rows
from specpipe.data.requests.request_builder import EncoderProtocol, RequestBuilder
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.errors import MachineError, ModelError
from specpipe.job import JobSpec
from specpipe.models.quantization.planned_weights import PlannedWeights
from specpipe.models.source import ModelSource, Role
from specpipe.pipeline.failures import is_out_of_memory
from specpipe.pipeline.job_check import check_device_memory
from specpipe.pipeline.prepare import PreparedJob, find_model
from specpipe.pipeline.replay.run_answers import open_answers
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

if TYPE_CHECKING:
    from specpipe.engine.engine import Engine
    from specpipe.engine.forward.model_runner import ModelRunner
    from specpipe.models.tokenizer import PromptEncoder

log = logging.getLogger(__name__)
_PROFILE_S = 2.0  # limit on measuring rounds before the first row
_CORPUS_S = 1.0  # limit on filling the corpus before the first row; rows with an answer of their own need none of it
_CHUNK = 256  # answers that are added to the corpus at a time


def build_parts(config: WorkerConfig) -> WorkerParts:
    """Loads the models onto this worker's device. Raises ModelError or MachineError."""
    _import_libraries()
    import torch

    from specpipe.engine.build import PREPARE_S, EngineSpec, build_engine
    from specpipe.engine.kv_scales import MEASURED_PROMPTS, kv_scale_table

    began = time.perf_counter()
    torch.set_num_threads(config.threads)
    if config.device == "cpu":
        keep_freed_memory()
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            f"Ray gave a GPU to the worker on {socket.gethostname()}, but torch {torch.__version__} cannot use it. "
            "Install a torch with CUDA support that fits the driver, or set model.device: cpu"
        )
    job, prepared = config.job, config.prepared
    model, trust = job.model, job.model.trust_remote_code
    target = _local_model(job, prepared.target, "target")
    draft = _local_model(job, prepared.draft, "draft") if prepared.draft is not None else None
    check_device_memory(
        dataclasses.replace(prepared, target=target, draft=draft), config.device, _device_memory(config.device)
    )
    encoder = make_encoder(job, target)
    dtype = resolve_dtype(model.dtype, config.device)
    sampling, choices = job.sampling_params(), _round_choices(job)
    spec = EngineSpec(
        target=target,
        draft=draft,
        device=config.device,
        dtype=dtype,
        quantize=model.quantize,
        quantize_draft=model.quantize_draft,
        config=job.engine_config(model.max_model_len or 0),
        trust_remote_code=trust,
        sampling=sampling,
        kv_scales=config.kv_scales,
        kv_prompts=_first_prompts(prepared, encoder, MEASURED_PROMPTS) if model.kv_dtype == "fp8" else (),
        choices=choices,
    )
    engine = build_engine(spec)
    engine.prepare(sampling, choices, within_s=PREPARE_S)
    max_model_len = engine.config.max_model_len
    builder = make_builder(job, encoder, max_model_len=max_model_len, vocab_size=engine.target.vocab_size)
    _fill_corpus(engine, config, builder)
    name = torch.cuda.get_device_name() if config.device == "cuda" else f"cpu, {config.threads} threads"
    runners: dict[Role, ModelRunner | None] = {"target": engine.target, "draft": engine.draft}
    facts: dict[str, Any] = {
        "device": name,
        "dtype": dtype,
        "kv_dtype": str(engine.target.kv_dtype).removeprefix("torch."),
        "model_load_s": time.perf_counter() - began,
        "weights": {
            role: PlannedWeights(
                prepared.formats.get(role, dtype), runner.weight_bytes, copies=runner.copy_bytes
            ).describe()
            for role, runner in runners.items()
            if runner is not None
        },
    }
    if config.device == "cuda":
        facts["memory_gib"] = torch.cuda.memory_allocated() / 2**30  # weights, KV pages, state and graphs' inputs
    profile = _profile(engine, job) if job.speculation.policy == "goodput" else Profile()
    loaded = [runner for runner in runners.values() if runner is not None]
    kv_scales = kv_scale_table(loaded, spec.kv_keys)
    return WorkerParts(engine=engine, builder=builder, facts=facts, profile=profile, kv_scales=kv_scales)


def _device_memory(device: DeviceName) -> int:
    """Returns the bytes of this worker's GPU, or the free ones of its machine."""
    import torch

    return torch.cuda.mem_get_info()[1] if device == "cuda" else free_memory()


def _first_prompts(prepared: PreparedJob, encoder: EncoderProtocol, count: int) -> tuple[tuple[int, ...], ...]:
    """Returns the prompts (token ids) of the dataset's first rows, without rows that no request can be made of."""
    job = prepared.job
    builder = make_builder(job, encoder, max_model_len=job.model.max_model_len or 1 << 30, vocab_size=1 << 30)
    prompts: list[tuple[int, ...]] = []
    for file in prepared.files:
        shard = Shard(index=0, file=file.path, start=0, stop=file.rows, first_row=0)
        for row in read_rows(file, 0, min(file.rows, count - len(prompts)), builder.columns):
            request = builder.build(row, shard)
            if isinstance(request, Request):
                prompts.append(request.prompt_token_ids)
        if len(prompts) >= count:
            break
    return tuple(prompts)


def _fill_corpus(engine: Engine, config: WorkerConfig, builder: RequestBuilder) -> None:
    """Adds earlier answers to the engine's corpus: half of what it holds, and only as many as fit into `_CORPUS_S`."""
    from specpipe.engine.proposers.corpus import TOKEN_BYTES

    tokens = engine.config.corpus_mib * 2**20 // TOKEN_BYTES // 2
    if not config.answers or not tokens:
        return
    stop = time.perf_counter() + _CORPUS_S
    answers = open_answers(config.answers, builder).latest(tokens)
    while time.perf_counter() < stop and (some := list(islice(answers, _CHUNK))):
        engine.add_answers(((), answer) for answer in some)


def _import_libraries() -> None:
    """Imports what every engine needs, before the process has an engine.

    Torch and transformers create about a million objects that live as long as the process. The garbage collector is
    paused meanwhile, and never visits them later: a full collection would take 0.5 s, the first one before the first
    row.
    """
    if "transformers" in sys.modules:
        return  # frozen objects are never freed, and the garbage of an engine that ran out of memory must be
    enabled = gc.isenabled()
    gc.disable()
    try:
        from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer  # noqa: F401

        import specpipe.engine.build
        import specpipe.models.tokenizer  # noqa: F401
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _profile(engine: Engine, job: JobSpec) -> Profile:
    """Measures rounds before the first row. A failure is logged, not raised: the policy can start without it."""
    try:
        shapes = rounds_to_profile(engine.config.slots, engine.config.max_k, engine.proposers)
        return engine.profile(job.sampling_params(), shapes, context=PROFILED_CONTEXT, within_s=_PROFILE_S)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        log.warning("rounds could not be timed before the first row: %s: %s", type(error).__name__, error)
        return Profile(expert_share=engine.target.expert_share)


def _round_choices(job: JobSpec) -> tuple[tuple[ProposerName, int], ...]:
    """Returns the pairs of proposer and K that plans of the job may contain."""
    choices: list[tuple[ProposerName, int]] = [("none", 0)]
    for name in job.proposers:
        limit = job.k_limit(name)
        ks = followed_ks(limit) if name in ("replay", "joined") else range(1, limit + 1)
        choices += [(name, k) for k in (ks if job.speculation.policy == "goodput" else (limit,))]
    return tuple(choices)


def make_encoder(job: JobSpec, target: ModelSource) -> PromptEncoder:
    """Returns the encoder of a job's prompts. Raises ModelError. Imports transformers."""
    from specpipe.models.tokenizer import PromptEncoder, load_tokenizer

    model = job.model
    return PromptEncoder(
        load_tokenizer(target, trust_remote_code=model.trust_remote_code, chat_template=model.chat_template),
        system_prompt=job.data.system_prompt,
        template_kwargs=dict(model.chat_template_kwargs),
        name=target.name,
    )


def make_builder(job: JobSpec, encoder: EncoderProtocol, *, max_model_len: int, vocab_size: int) -> RequestBuilder:
    """Returns the request builder of a job. `max_model_len`: limit on prompt and output, in tokens."""
    return RequestBuilder(
        encoder=encoder,
        sampling=job.sampling_params(),
        job_seed=job.seed,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        prompt_column=job.data.prompt,
        truncate=job.data.on_too_long == "truncate_left",
    )


def _local_model(job: JobSpec, source: ModelSource, role: Role) -> ModelSource:
    """Finds the driver's model on this machine. Raises ModelError when its files differ here."""
    name = source.name
    if not name.startswith("builtin:") and name.count("/") == 1 and name[0] not in "./~" and "@" not in name:
        name = f"{name}@{source.revision}" if len(source.revision) == 40 else name
    found = find_model(job, name, role)
    if found.revision != source.revision:
        raise ModelError(
            f"model {source.name} is revision {found.revision} on {socket.gethostname()} and {source.revision} where "
            "the run was started; expected the same files on every machine"
        )
    return dataclasses.replace(found, name=source.name)
