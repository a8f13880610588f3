"""A speculation plan: the decision of a policy, valid until the next plan."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core.defaults import MAX_DRAFT_TOKENS
from specpipe.core.literals import ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """A round with another K than the plan's, to measure it: the last of every `every` engine rounds."""

    k: int
    """0 with proposer "none" measures plain decoding."""
    proposer: ProposerName
    every: int
    catch_up: int | None = None
    """Budget in tokens for the draft model's catch-up before the round: one row suffices for a measurement. None: the
    budget of any other round."""

    def __post_init__(self) -> None:
        if not (0 <= self.k <= MAX_DRAFT_TOKENS and self.every > 1):
            raise ValueError(f"{self}: expected 0 <= k <= {MAX_DRAFT_TOKENS} and every > 1")
        if self.catch_up is not None and self.catch_up < 0:
            raise ValueError(f"{self}: expected catch_up of 0 tokens or more, or None")

    def due(self, round_index: int) -> bool:
        """Returns whether round `round_index` explores. Rounds count from 0 at the start of the engine."""
        return (round_index + 1) % self.every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationPlan:
    """K for each occupancy: `ks[n]` while n rows run. The last entry holds for more rows."""

    ks: tuple[int, ...]
    proposer: ProposerName
    queue_depth: float
    """Rows running, waiting in the workers and not yet dispatched, divided by live workers, when the plan was made."""
    reason: str
    """One sentence for logs and reports."""
    explore: tuple[Exploration, ...] = ()
    """Trials, the rarest first: where several are due, the first one runs."""
    tokens_per_s: tuple[float, ...] = ()
    """Expected tokens per second of a worker at each occupancy, indexed like `ks`; empty where the policy makes no
    estimate."""
    new_rows_limit: int | None = None
    """Largest number of running rows, the new one included, at which a row that gets a slot may have drafts. A row that
    gets its slot beside more has none while it holds it, whatever K is. None: no limit."""

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 0 or max(self.ks) > MAX_DRAFT_TOKENS:
            raise ValueError(f"ks={self.ks}: expected at least one K, each between 0 and {MAX_DRAFT_TOKENS}")
        if self.new_rows_limit is not None and self.new_rows_limit < 0:
            raise ValueError(f"new_rows_limit={self.new_rows_limit}: expected 0 rows or more, or None")

    def k_for(self, running: int) -> int:
        """Returns K while `running` rows hold a slot, exploration aside."""
        return self.ks[min(running, len(self.ks) - 1)]

    def speculates(self, running: int) -> bool:
        """Returns whether a row that gets a slot as the last of `running` rows may have drafts."""
        return self.new_rows_limit is None or running <= self.new_rows_limit

    def choice(self, running: int, round_index: int) -> tuple[ProposerName, int]:
        """Returns proposer and K of a round. They depend on counts alone, never on a token."""
        if (explore := self.exploring(round_index)) is not None:
            return explore.proposer, explore.k
        k = self.k_for(running)
        return (self.proposer if k else "none"), k

    def exploring(self, round_index: int) -> Exploration | None:
        """Returns the exploration of this round, or None."""
        return next((explore for explore in self.explore if explore.due(round_index)), None)

    def expected_tokens_per_s(self, running: int) -> float:
        """Returns the expected tokens per second of a worker with `running` rows; 0.0 without an estimate."""
        return self.tokens_per_s[min(running, len(self.tokens_per_s) - 1)] if self.tokens_per_s else 0.0

    @property
    def max_k(self) -> int:
        """Largest K of any round, exploration included."""
        return max((*self.ks, *(explore.k for explore in self.explore)))
