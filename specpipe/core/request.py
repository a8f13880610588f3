"""A request: one output row, ready for an engine."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Prompt, sampling parameters and seed of one output row."""

    request_id: str
    shard: int
    row: int
    """Index of the output row within its shard, from 0. Outputs are written in this order."""
    sample: int = 0
    """Index of this output among the samples of its prompt, from 0."""
    prompt: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    """Key of every random draw of this row (63 bits), derived from the job's seed and the row's position in the
    dataset, never from its shard."""
