"""The target's logits where two greedy outputs first differ: a numerical tie, or a real difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specpipe.core import Request, Shard
from specpipe.data import list_files, read_rows
from specpipe.errors import OutputError
from specpipe.evaluation.compare.rounding import rounding_tolerance
from specpipe.evaluation.compare.text_comparison import Divergence
from specpipe.evaluation.run_outputs import RunOutputs
from specpipe.job import JobSpec, parse_job
from specpipe.pipeline.prepare import find_model
from specpipe.pipeline.worker.build import make_builder

MAX_LOGIT_GAPS = 20
"""Largest number of divergences that logits are computed for; each takes a forward pass over its row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitGap:
    """The target's fp32 logits at the first differing position of a greedy row."""

    row: int
    request_id: str
    position: int
    top1: int
    top2: int
    """Second most likely token; `top1` is the most likely one."""
    gap: float
    """Logit of top1 minus logit of top2."""
    lost: float
    """Logit of top1 minus the lower logit of the two runs' tokens."""
    tolerance: float
    """Largest difference that rounding in the runs' dtype explains."""

    @property
    def is_tie(self) -> bool:
        """True if both runs' tokens are the most likely one up to rounding."""
        return self.lost <= self.tolerance


def logit_gaps(run: RunOutputs, divergences: Sequence[Divergence], dtype: str) -> list[LogitGap]:
    """Loads the run's target and computes logits for the first MAX_LOGIT_GAPS divergences of greedy rows.

    dtype: number format of the runs. Ignores sampled rows, whose outputs may differ anywhere. Raises OutputError if an
    input file is missing, ModelError, DataError.
    """
    import torch

    from specpipe.engine.loading.load_weights import load_weights
    from specpipe.models.tokenizer import eos_token_ids, load_tokenizer

    job = _job(run)
    trust = job.model.trust_remote_code
    source = find_model(job, job.model.target, "target")
    model = load_weights(source, "cpu", torch.float32, "sdpa", quantize=job.model.quantize, trust_remote_code=trust)
    ends = eos_token_ids(source, load_tokenizer(source, trust_remote_code=trust))
    found = []
    for divergence, request in greedy_requests(run, divergences):
        ids = torch.tensor([[*request.prompt_token_ids, *divergence.common]])
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].float().cpu()
        (first, second), (top1, top2) = (part.tolist() for part in logits.topk(2))
        chosen = [_logit(logits, token, ends) for token in (divergence.token_a, divergence.token_b)]
        found.append(
            LogitGap(
                row=divergence.row,
                request_id=divergence.request_id,
                position=divergence.position,
                top1=top1,
                top2=top2,
                gap=first - second,
                lost=first - min(chosen),
                tolerance=rounding_tolerance(dtype, first),
            )
        )
    return found


def _logit(logits: object, token: int | None, ends: Sequence[int]) -> float:
    """Returns the logit of a token, for None that of the most likely end-of-sequence token. logits: [V]."""
    values: list[float] = logits.tolist()  # type: ignore[attr-defined]
    return values[token] if token is not None else max((values[end] for end in ends), default=float("-inf"))


def _job(run: RunOutputs) -> JobSpec:
    """Returns the job that a run's manifest describes."""
    values: dict[str, object] = {}
    for place, value in {**run.manifest.identity, **run.manifest.tuning}.items():
        section, _, key = place.partition(".")
        if not key and section in JobSpec.model_fields:
            values[section] = value
        elif key and section in JobSpec.model_fields:
            inner = values.setdefault(section, {})
            assert isinstance(inner, dict)
            inner[key] = value
    for section in ("model", "sampling"):  # the manifest also has facts about the job's files there
        fields = JobSpec.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        inner = values.get(section)
        if isinstance(inner, dict):
            values[section] = {key: value for key, value in inner.items() if key in fields}
    return parse_job(values, source=run.folder.file("manifest.json"))


def greedy_requests(run: RunOutputs, divergences: Sequence[Divergence]) -> Iterator[tuple[Divergence, Request]]:
    """Yields the first MAX_LOGIT_GAPS divergences of greedy rows with their requests, encoded as by the workers.

    Raises OutputError if an input file is missing, ModelError, DataError.
    """
    from specpipe.models.tokenizer import PromptEncoder, load_tokenizer

    job = _job(run)
    source = find_model(job, job.model.target, "target")
    tokenizer = load_tokenizer(
        source, trust_remote_code=job.model.trust_remote_code, chat_template=job.model.chat_template
    )
    encoder = PromptEncoder(
        tokenizer, system_prompt=job.data.system_prompt, template_kwargs=dict(job.model.chat_template_kwargs)
    )
    files = {file.path: file for file in list_files(job.data.path, job.data.format, job.data.prompt)}
    builder = make_builder(job, encoder, max_model_len=1 << 30, vocab_size=1 << 30)
    builder = replace(builder, max_model_len=job.model.max_model_len or 1 << 30)
    count = 0
    for divergence in divergences:
        shard, at = _place(run, divergence.row)
        if shard.file not in files:
            raise OutputError(
                f"{shard.file}, which {run.folder.path} ran on, no longer exists; --logits needs its rows"
            )
        row = next(iter(read_rows(files[shard.file], at, at + 1, builder.columns)))
        request = builder.build(row, shard)
        if isinstance(request, Request) and request.sampling.greedy:
            yield divergence, request
            count += 1
        if count == MAX_LOGIT_GAPS:
            return


def _place(run: RunOutputs, row: int) -> tuple[Shard, int]:
    """Returns the shard of an output row, and the row's index in its input file."""
    for shard in run.manifest.shards:
        if row < shard.rows:
            return shard, shard.start + row // shard.samples
        row -= shard.rows
    raise IndexError(row)
