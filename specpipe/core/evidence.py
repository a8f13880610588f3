"""What a policy learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core.acceptance import AcceptanceCounts
from specpipe.core.names import ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """What rounds of one shape took, prefill aside. Rounds that compiled or captured a graph are no part."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: int
    """Rows of each round."""
    context: float
    """Mean tokens of a row when the round began (length of its KV)."""
    rounds: int
    seconds: float
    """Of all these rounds together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillPoint:
    """What forwards of about one size took in which the draft model alone prefilled."""

    forwards: int
    tokens: int
    """Of all of them together, as the seconds."""
    seconds: float

    def __add__(self, other: PrefillPoint) -> PrefillPoint:
        return PrefillPoint(
            forwards=self.forwards + other.forwards,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a worker has timed before its first row; empty where that could not be measured."""

    rounds: tuple[CostPoint, ...] = ()
    draft_prefills: tuple[PrefillPoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What rounds and rows have shown: all that a policy learns from. All of it is past."""

    verified: Mapping[ProposerName, AcceptanceCounts] = field(default_factory=dict)
    """By who drafted."""
    rounds: Mapping[ProposerName, int] = field(default_factory=dict)
    """Rounds with K > 0, by who drafted."""
    row_rounds: Mapping[ProposerName, int] = field(default_factory=dict)
    """Rows of those rounds, those without a draft included."""
    costs: tuple[CostPoint, ...] = ()
    rows: int = 0
    """Rows that ended."""
    input_tokens: int = 0
    """Prompt tokens of those rows."""
    output_tokens: int = 0
    """Generated tokens of those rows."""
    draft_prefills: tuple[PrefillPoint, ...] = ()
    running: int = 0
    """Rows of the latest round; 0 without any."""
    draft_behind: float = 0.0
    """`StepReport.draft_behind` of the latest round."""
    left: float = 0.0
    """`StepReport.left` of the latest round."""
