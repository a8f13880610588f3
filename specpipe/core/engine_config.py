"""Configuration of an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specpipe.core.defaults import CPU_PAGE_SIZE, PREFILL_BUDGET
from specpipe.core.literals import DeviceName, KVDtypeChoice, Method, ProposerChoice, ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Sizes and methods of an engine, beside its models.

    All fields are tuning, except `method`, `synthetic_rates` and `kv_dtype`, which make the outputs.
    """

    slots: int = 16
    """Rows that generate at once."""
    max_model_len: int = 0
    """Longest prompt + output, in tokens; 0 takes the models' limit."""
    max_k: int = 0
    """Largest K of any plan of this run."""
    draft_k: int = 0
    """Largest K of the proposers "draft" and "ngram", and steps of the draft model in a round of "joined"; 0: max_k."""
    replay_k: int = 0
    """Largest K of the proposers "replay" and "joined"; 0: there is no earlier text."""
    corpus_mib: int = 0
    """Device memory for the tokens of finished answers and their index, in MiB; 0: no corpus."""
    proposer: ProposerChoice = "none"
    """With "auto" the plan chooses the draft model (where there is one) or n-grams for each round."""
    method: Method = "standard"
    synthetic_rates: tuple[float, ...] = ()
    """Unconditional acceptance per position, non-increasing; only with method "synthetic"."""
    ngram_max: int = 3
    """Longest suffix that the n-gram proposer looks up, in tokens."""
    ngram_min: int = 1
    """Shortest suffix that the n-gram proposer looks up, in tokens."""
    prefill_budget: int = PREFILL_BUDGET
    """Prompt tokens of one prefill step, at most."""
    page_size: int = 64
    """Tokens of one KV page."""
    kv_dtype: KVDtypeChoice = "auto"
    """Number format of KV pages of both models."""
    prefix_sharing: bool = True
    """Rows whose prompts begin with the same pages share their KV."""
    dense_copies: bool = True
    """GPU memory beyond the largest KV keeps dense copies of 4-bit weights."""

    def largest_k(self, proposer: ProposerName) -> int:
        """Returns the largest K of a round of this proposer."""
        return self.replay_k if proposer in ("replay", "joined") else self.draft_k or self.max_k

    @property
    def pages_per_row(self) -> int:
        """Width of the block table: pages of the longest row and of the draft tokens written past its end."""
        return -(-(self.max_model_len + self.max_k + 1) // self.page_size)

    def on(self, device: DeviceName) -> EngineConfig:
        """Returns the configuration with the page size of a device."""
        return self if device == "cuda" else replace(self, page_size=min(self.page_size, CPU_PAGE_SIZE))
