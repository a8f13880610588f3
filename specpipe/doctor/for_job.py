"""The job on this machine: output folder, models, dataset, memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specpipe.core import Completion, Request, Shard
from specpipe.data import Row, list_files, read_rows
from specpipe.data.locations import Location, locate
from specpipe.data.publish import publish_bytes
from specpipe.data.requests.prompts import find_prompt
from specpipe.doctor import host
from specpipe.doctor.finding import GIB, Finding, guarded
from specpipe.errors import InputError, OutputError, SpecpipeError
from specpipe.job import JobSpec
from specpipe.models.source import ModelSource, Role, hub_access, is_on_hub
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.worker.build import find_model, make_builder

_SHARED = frozenset({"nfs", "nfs4", "cifs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "efs", "9p", "virtiofs"})
_ROWS = 20  # of the dataset, tried as prompts


def examine(job: JobSpec) -> Iterator[Finding]:
    """Findings about a job, cheapest first. What needs a model's files waits until they are here."""
    yield from guarded("output folder", lambda: _output(job))
    models: dict[Role, ModelSource] = {}
    missing = False
    for role, name in _names(job):
        for finding, source in _model(job, role, name):
            yield finding
            missing |= source is None
            models |= {} if source is None else {role: source}
    if missing:
        found = "dataset, vocabulary and memory are checked once the models are here"
        yield Finding(name="plan", status="note", found=found, mend="")
        return
    yield from guarded("models", lambda: _fit(job, models))
    planned = list(guarded("plan", lambda: _plan(job)))
    yield from planned
    if planned[0].status == "ok":
        yield from guarded("dataset", lambda: _dataset(job, models["target"]))


def _output(job: JobSpec) -> Iterator[Finding]:
    folder = RunFolder.at(job.output.path)
    folder.claim()
    location = locate(folder.path)
    path = Path(location.path) if location.is_local else None
    _require_writable(location, path)
    if path is None or "RAY_ADDRESS" not in os.environ or host.mount_type(path) in _SHARED:
        yield Finding(name="output folder", status="ok", found=f"{folder.path} can be written")
        return
    found = f"{folder.path} is on this machine's own disk ({host.mount_type(path)}), and RAY_ADDRESS names a cluster"
    mend = "unless the cluster is this machine alone, choose storage that all machines share (NFS, s3://, gs://)"
    yield Finding(name="output folder", status="note", found=found, mend=mend)


def _require_writable(location: Location, path: Path | None) -> None:
    """Raises OutputError. A store is written to and the file deleted; of a local folder permissions say enough."""
    if path is None:
        probe = location.child(f".specpipe-doctor-{uuid.uuid4().hex}")
        try:
            publish_bytes(probe.text(), b"")
            probe.filesystem.delete_file(probe.path)
        except OSError as error:
            raise OutputError(f"{location.text()} cannot be written: {error}; check its credentials") from error
        return
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path} cannot be written ({there} is no folder that this user may write); mend that, or "
            "choose another output.path"
        )


def _names(job: JobSpec) -> list[tuple[Role, str]]:
    draft: list[tuple[Role, str]] = [] if job.draft_model is None else [("draft", job.draft_model)]
    return [("target", job.model.target), *draft]


def _model(job: JobSpec, role: Role, name: str) -> Iterator[tuple[Finding, ModelSource | None]]:
    """Where a model is; None for one that is not on this machine."""
    try:
        if is_on_hub(name) and not hub_access(name):
            found = f"{name} is on the Hub, and open to you; the first run downloads it"
            yield Finding(name=role, status="ok", found=found, mend=""), None
            return
        source = find_model(job, name, role)
    except SpecpipeError as error:
        yield Finding(name=role, status="problem", found=str(error)), None
        return
    yield Finding(name=role, status="ok", found=f"{name}, revision {source.revision[:16]}, in {source.path}"), source


def _fit(job: JobSpec, models: dict[Role, ModelSource]) -> Iterator[Finding]:
    """Whether the engine serves these models, and their vocabularies are one. Reads no weights."""
    from specpipe.models.loader import load_config
    from specpipe.models.support import check_pair, check_support
    from specpipe.models.tokenizer import load_tokenizer

    trust = job.model.trust_remote_code
    tokenizers: list[Any] = []
    for source in models.values():
        config = load_config(source, trust_remote_code=trust)
        check_support(config, name=source.name, max_model_len=job.model.max_model_len)
        tokenizers.append(load_tokenizer(source, trust_remote_code=trust))
    if len(tokenizers) == 2:
        names = [source.name for source in models.values()]
        check_pair(*tokenizers, target_name=names[0], draft_name=names[1])
    pair = "both can be served, and share a vocabulary" if len(tokenizers) == 2 else "can be served"
    yield Finding(name="models", status="ok", found=pair)


def _dataset(job: JobSpec, target: ModelSource) -> Iterator[Finding]:
    """Whether the first rows are prompts for this model."""
    from specpipe.models.loader import load_config
    from specpipe.models.support import context_length
    from specpipe.models.tokenizer import PromptEncoder, load_tokenizer

    file = next(iter(list_files(job.data.path, job.data.format, job.data.prompt)))
    trust, template = job.model.trust_remote_code, job.model.chat_template
    tokenizer = load_tokenizer(target, trust_remote_code=trust, chat_template=template)
    encoder = PromptEncoder(
        tokenizer,
        system_prompt=job.data.system_prompt,
        template_kwargs=dict(job.model.chat_template_kwargs),
        name=target.name,
    )
    config = load_config(target, trust_remote_code=trust)
    length = job.model.max_model_len or context_length(config)
    builder = make_builder(job, encoder, max_model_len=length, vocab_size=config.vocab_size)
    rows = min(file.rows, job.data.limit or _ROWS, _ROWS)
    shard = Shard(index=0, file=file.path, start=0, stop=rows, first_row=0)
    given = list(read_rows(file, 0, rows, builder.columns))
    built = [builder.build(row, shard) for row in given]
    errors = [row.error for row in built if isinstance(row, Completion)]
    if errors:
        found = f"{len(errors)} of the first {rows} rows cannot be run; {errors[0]}"
        yield Finding(name="dataset", status="problem" if len(errors) == rows else "note", found=found)
    else:
        tokens = [len(row.prompt_token_ids) for row in built if isinstance(row, Request)]
        longest = f", {max(tokens):,} tokens at most" if tokens else ""
        yield Finding(name="dataset", status="ok", found=f"the first {rows} rows are prompts{longest}")
    if tokenizer.chat_template and not job.data.system_prompt and any(_is_plain(row, job) for row in given):
        found = "plain text, which goes in as it stands; the target has a chat template, and answers chats"
        mend = "messages in place of plain prompts, or data.system_prompt, which makes chats of them"
        yield Finding(name="prompts", status="note", found=found, mend=mend)


def _is_plain(row: Row, job: JobSpec) -> bool:
    try:
        return row.values is not None and find_prompt(row.values, job.data.prompt, job.sampling.n).text is not None
    except InputError:
        return False


def _plan(job: JobSpec) -> Iterator[Finding]:
    from specpipe.pipeline.run.dry_run import plan_run

    plan = plan_run(job)
    found = f"{plan.rows:,} rows in {plan.shards:,} shards for {plan.workers:,} worker(s) on {plan.device}"
    yield Finding(name="plan", status="ok", found=found)
    free = host.free_memory(plan.device)
    workers = plan.workers if plan.device == "cpu" else 1
    weights, pages = plan.weight_bytes * workers, plan.kv_bytes * workers
    needs = f"{weights / GIB:.1f} GiB of weights and up to {pages / GIB:.1f} GiB of KV pages; {free / GIB:.1f} free"
    if weights > free:
        mend = "smaller models, model.dtype: bfloat16, or fewer workers"
        yield Finding(name="memory", status="problem", found=needs, mend=mend)
    elif weights + pages > free:
        mend = "fewer rows will run at once than workers.slots; a lower model.max_model_len makes room"
        yield Finding(name="memory", status="note", found=needs, mend=mend)
    else:
        yield Finding(name="memory", status="ok", found=needs)
