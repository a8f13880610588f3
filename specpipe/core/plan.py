"""What a policy decides."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core.names import MAX_DRAFT_TOKENS, ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """Rounds that try a K which the plan would not: the last `rounds` of every `every`, by the engine's count."""

    k: int
    """0 with proposer "none": to see what plain decoding would take."""
    proposer: ProposerName
    rounds: int
    every: int
    catch_up: int | None = None
    """Tokens that the draft model may catch up before the first of the `rounds`: some rows will do. None: as for any
    other round."""

    def __post_init__(self) -> None:
        if not (0 <= self.k <= MAX_DRAFT_TOKENS and 0 < self.rounds < self.every):
            raise ValueError(f"{self}: expected 0 <= k <= {MAX_DRAFT_TOKENS} and 0 < rounds < every")
        if self.catch_up is not None and self.catch_up < 0:
            raise ValueError(f"{self}: expected catch_up of 0 tokens or more, or None")

    def due(self, round_index: int) -> bool:
        """Whether round `round_index`, counted from 0 since the engine started, is one of them."""
        return round_index % self.every >= self.every - self.rounds

    def catch_up_at(self, round_index: int) -> int | None:
        """Tokens that the draft model may catch up before this round, one of them; None: as for any other."""
        if self.catch_up is None:
            return None
        return 0 if round_index and self.due(round_index - 1) else self.catch_up

    def unchanged(self, round_index: int) -> int:
        """For how many rounds, this one included, `due` stays what it is."""
        place = round_index % self.every
        return self.every - place if self.due(round_index) else self.every - self.rounds - place


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationPlan:
    """Which K to speculate with at each occupancy: `ks[n]` while n rows run; the last entry holds beyond."""

    ks: tuple[int, ...]
    proposer: ProposerName
    queue_depth: float
    """Rows running, waiting in the worker and not yet handed out, over live workers, when the plan was made."""
    reason: str
    """One readable sentence."""
    explore: Exploration | None = None
    tokens_per_s: tuple[float, ...] = ()
    """What a worker is expected to generate at each occupancy, as `ks`; empty where the policy does not say."""
    least_ready: float = 0.0
    """Share of the rows that the draft model must have caught up with for its rounds to pay; until then rounds are
    plain. Rounds that explore do not wait."""

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 0 or max(self.ks) > MAX_DRAFT_TOKENS:
            raise ValueError(f"ks={self.ks}: expected at least one K, each between 0 and {MAX_DRAFT_TOKENS}")
        if not 0 <= self.least_ready <= 1:
            raise ValueError(f"least_ready={self.least_ready}: expected a share, 0 to 1")

    def k_for(self, running: int) -> int:
        """K while `running` rows hold a slot, in a round that explores nothing."""
        return self.ks[min(running, len(self.ks) - 1)]

    def choice(self, running: int, round_index: int) -> tuple[ProposerName, int]:
        """Who drafts, and how many, in this round. Depends on counts alone, never on a token."""
        if (explore := self.exploring(round_index)) is not None:
            return explore.proposer, explore.k
        k = self.k_for(running)
        return (self.proposer if k else "none"), k

    def exploring(self, round_index: int) -> Exploration | None:
        """What this round tries, if it does."""
        return self.explore if self.explore is not None and self.explore.due(round_index) else None

    def expected_tokens_per_s(self, running: int) -> float:
        """What a worker is expected to generate while `running` rows hold a slot; 0.0 where the policy does not say."""
        return self.tokens_per_s[min(running, len(self.tokens_per_s) - 1)] if self.tokens_per_s else 0.0

    @property
    def max_k(self) -> int:
        return max(*self.ks, self.explore.k if self.explore else 0)
