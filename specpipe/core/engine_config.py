"""What an engine is told, and how many rows its worker holds ready."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core.names import Method, ProposerChoice

IN_FLIGHT = 2
"""Shards that a worker holds at once, so that its slots stay full across shard borders."""
MOST_IN_FLIGHT = 16
"""Shards that it holds where they are small."""
ROWS_AHEAD = 1.5
"""Rows that small shards give a worker for each slot: a third of them may end before its next word has been heard."""


def rows_at_once(slots: int) -> int:
    """New rows that get a slot together as a rule: a prefill of one row costs a pass over all weights, as one of ten
    rows does."""
    return max(1, slots // 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """What an engine needs to know beside its models. Part of a run's tuning, except `method` and the rates."""

    slots: int = 16
    """Rows that generate at once."""
    max_model_len: int = 0
    """Longest prompt + output, in tokens; 0 takes what the models allow."""
    max_k: int = 0
    """Widest round that any plan of this run may ask for."""
    proposer: ProposerChoice = "none"
    """"auto": the plan says which, among the draft model (where there is one) and n-grams."""
    method: Method = "standard"
    synthetic_rates: tuple[float, ...] = ()
    """Unconditional acceptance per position, non-increasing; only with method "synthetic"."""
    ngram_max: int = 3
    """Longest suffix that the n-gram proposer looks for."""
    ngram_min: int = 1
    prefill_budget: int = 2048
    """Most prompt tokens of one prefill step."""
    page_size: int = 64
    """Tokens of one KV page."""

    @property
    def pages_per_row(self) -> int:
        """Block-table width: pages of the longest row, and of the drafts that may be written past its end."""
        return -(-(self.max_model_len + self.max_k + 1) // self.page_size)
