"""A row on its way: from a shard of the dataset to a request to a completion."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from specpipe.core.names import FinishReason
from specpipe.core.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A fixed range of rows of one input file: the unit of dispatch, of publishing and of retry."""

    index: int
    file: str
    start: int
    """First row of the range within the file, from 0."""
    stop: int
    """One past the last row."""
    first_row: int
    """Position of the first row in the whole dataset: the row's default identity."""
    samples: int = 1
    """Outputs of each row."""

    @property
    def input_rows(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Output rows."""
        return self.input_rows * self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One row, ready for an engine."""

    request_id: str
    shard: int
    row: int
    """Index of the output row within its shard, from 0: outputs are written in this order."""
    sample: int = 0
    """Which of its prompt's samples this is, from 0."""
    prompt: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    """Keys every draw of this row (63 bits). Derived from the job's seed and the row's identity, never its shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTiming:
    """When things happened to a row, in seconds since it first got a slot."""

    queued_s: float = 0.0
    """Time between submission and getting the first slot."""
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """Log-probabilities of T tokens under the distribution that each was sampled from (a greedy row's at temperature
    1), and of the n most likely tokens beside each. Packed, for a shard holds millions."""

    own: array[float]
    """"f", T entries."""
    n: int
    top_ids: array[int]
    """"i", T * n entries, the most likely first; -1 where truncation left fewer."""
    top: array[float]
    """"f", T * n entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What became of a row. A row that could not run has finish_reason "error" and says why."""

    request: Request
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason
    error: str = ""
    draft_tokens: int = 0
    """Draft tokens verified for this row."""
    accepted_tokens: int = 0
    """Accepted draft tokens that are part of the output (after end-of-sequence, stop string and limit)."""
    logprobs: Logprobs | None = None
    """Of token_ids; None where the row asked for none."""
    timing: RowTiming = RowTiming()
