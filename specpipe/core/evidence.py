"""Measurements that a speculation policy learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core.acceptance_counts import AcceptanceCounts
from specpipe.core.literals import ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """Seconds of rounds of one shape, without prefill. Excludes rounds that compiled a kernel or captured a graph."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: int
    """Rows of each round."""
    context: float
    """Mean length of a row's KV when the round began, in tokens."""
    rounds: int
    seconds: float
    """Of all of them, if each took as long as usual."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Times that a worker measured before its first row; empty where they could not be measured."""

    rounds: tuple[CostPoint, ...] = ()
    expert_share: float = 0.0
    """Share of the target's experts that one token is routed to; 0 for a dense model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Observations of past rounds and rows: the only input of a policy."""

    verified: Mapping[ProposerName, AcceptanceCounts] = field(default_factory=dict)
    """Acceptance by proposer. Where drafts are looked up, a row without one reaches the first position too."""
    costs: tuple[CostPoint, ...] = ()
    rows: int = 0
    """Rows that ended."""
    input_tokens: int = 0
    """Prompt tokens of those rows."""
    output_tokens: int = 0
    """Tokens generated meanwhile, by all rows."""
    draft_prefill_tokens: int = 0
    draft_prefill_s: float = 0.0
    """Seconds in which the draft model prefilled those tokens."""
    running: int = 0
    """Rows of the latest round; 0 without any."""
    draft_behind: float = 0.0
    """`StepReport.draft_behind` of the latest round."""
