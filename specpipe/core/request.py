"""A request: one output row, ready for an engine, which generates text or scores given texts."""

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
    warm_up: bool = False
    """The row leaves nothing to later rows: no shared KV, no answer to follow. Its outputs are discarded."""
    continuations: tuple[tuple[int, ...], ...] = ()
    """Token ids of texts that may follow the prompt, each with at least one. A row with continuations is scored: it
    gets their log-probabilities and generates nothing. Of `sampling` it uses `logprobs` alone."""
    reference: tuple[int, ...] = ()
    """Token ids of an earlier answer to this prompt, without the prompt, of any length: drafts for the proposers
    "replay" and "joined". It never changes the output."""

    @property
    def new_tokens(self) -> int:
        """Tokens that the row may generate: 0 for a row that is scored."""
        return 0 if self.continuations else self.sampling.max_new_tokens

    @property
    def scored_tokens(self) -> int:
        """Tokens of all continuations."""
        return sum(map(len, self.continuations))
