"""Where two greedy outputs part: would the target itself have been of two minds there?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specpipe.core import Request, Shard
from specpipe.data import EncoderProtocol, list_files, read_rows
from specpipe.errors import OutputError
from specpipe.evaluation.compare.text_comparison import Divergence
from specpipe.evaluation.run_outputs import RunOutputs
from specpipe.job import JobSpec, parse_job
from specpipe.pipeline.prepare import find_model
from specpipe.pipeline.worker.build import make_builder

MAX_LOGIT_GAPS = 20
"""Divergences that logits are computed for: each costs a forward pass over its row."""
_EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitGap:
    """The target's logits at the first diverging position of a greedy row, in fp32."""

    row: int
    request_id: str
    position: int
    top1: int
    top2: int
    """The two most likely tokens."""
    gap: float
    """Logit of top1 - logit of top2."""
    lost: float
    """How far the less likely of the two sides' tokens lies below top1."""
    tolerance: float
    """What rounding explains in the runs' number format."""

    @property
    def is_tie(self) -> bool:
        """Whether both sides' tokens are the best one, up to rounding."""
        return self.lost <= self.tolerance


def rounding_tolerance(dtype: str, logit: float) -> float:
    """How far apart two logits may be in fp32 and trade places in `dtype`: four of its units in the last place at the
    size of the largest logit, and 1e-3 at least."""
    return max(_FLOOR, 4 * _EPS.get(dtype, _EPS["float32"]) * abs(logit))


def logit_gaps(run: RunOutputs, divergences: Sequence[Divergence], dtype: str) -> list[LogitGap]:
    """Loads the run's target and reads it once for each of the first MAX_LOGIT_GAPS divergences of greedy rows.

    dtype: what the runs computed in. Rows that were sampled are left out: theirs may part anywhere.
    Raises OutputError where the job can no longer be read, ModelError, DataError.
    """
    import torch

    from specpipe.models.loader import load_model
    from specpipe.models.tokenizer import PromptEncoder, eos_token_ids, load_tokenizer

    job = _job(run)
    trust = job.model.trust_remote_code
    source = find_model(job, job.model.target, "target")
    model = load_model(source, "cpu", torch.float32, "sdpa", trust_remote_code=trust)
    tokenizer = load_tokenizer(source, trust_remote_code=trust, chat_template=job.model.chat_template)
    encoder = PromptEncoder(
        tokenizer, system_prompt=job.data.system_prompt, template_kwargs=dict(job.model.chat_template_kwargs)
    )
    ends = eos_token_ids(source, tokenizer)
    found = []
    for divergence, request in _greedy_requests(run, job, encoder, divergences):
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
    """Of a token, or of the likeliest end of sequence where an output ended."""
    values: list[float] = logits.tolist()  # type: ignore[attr-defined]
    return values[token] if token is not None else max((values[end] for end in ends), default=float("-inf"))


def _job(run: RunOutputs) -> JobSpec:
    """The job that a manifest describes."""
    values: dict[str, object] = {}
    for place, value in {**run.manifest.identity, **run.manifest.tuning}.items():
        section, _, key = place.partition(".")
        if not key and section in JobSpec.model_fields:
            values[section] = value
        elif key and section in JobSpec.model_fields:
            inner = values.setdefault(section, {})
            assert isinstance(inner, dict)
            inner[key] = value
    for section in ("model", "sampling"):  # facts about the job's files, not fields of it
        fields = JobSpec.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        inner = values.get(section)
        if isinstance(inner, dict):
            values[section] = {key: value for key, value in inner.items() if key in fields}
    return parse_job(values, source=run.folder.file("manifest.json"))


def _greedy_requests(
    run: RunOutputs, job: JobSpec, encoder: EncoderProtocol, divergences: Sequence[Divergence]
) -> Iterator[tuple[Divergence, Request]]:
    """The requests of the first MAX_LOGIT_GAPS divergences whose rows are greedy, tokenised as the workers did."""
    files = {file.path: file for file in list_files(job.data.path, job.data.format, job.data.prompt)}
    builder = make_builder(job, encoder, max_model_len=1 << 30, vocab_size=1 << 30)
    builder = replace(builder, max_model_len=job.model.max_model_len or 1 << 30)
    count = 0
    for divergence in divergences:
        shard, at = _place(run, divergence.row)
        if shard.file not in files:
            raise OutputError(f"{shard.file}, which {run.folder.path} ran on, is no longer there; logits need its rows")
        row = next(iter(read_rows(files[shard.file], at, at + 1, builder.columns)))
        request = builder.build(row, shard)
        if isinstance(request, Request) and request.sampling.greedy:
            yield divergence, request
            count += 1
        if count == MAX_LOGIT_GAPS:
            return


def _place(run: RunOutputs, row: int) -> tuple[Shard, int]:
    """The shard of an output row, and the input row in its file."""
    for shard in run.manifest.shards:
        if row < shard.rows:
            return shard, shard.start + row // shard.samples
        row -= shard.rows
    raise IndexError(row)
