"""Rounds and prefills of the dummy slot alone: they cost what real ones cost and change nothing that rows see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.engine.forward.graphed_prefill import rehearse_padded, sizes_for
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.prefill import prefill
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_key import RoundKey, keys_of
from specpipe.engine.state.chunks import Chunk

MOST_PROMPTS = 64  # prefilled at once: more of them are no other case


class WarmUp:
    """Runs an engine's operations eagerly."""

    def __init__(
        self, round_: Round, runners: Sequence[ModelRunner], config: EngineConfig, proposers: Sequence[ProposerName]
    ) -> None:
        """proposers: those that there are, the one that takes most first."""
        self._round, self._runners, self._config, self._proposers = round_, runners, config, proposers

    def _round_of(self, rows: int, key: RoundKey) -> None:
        state = self._round.state
        self._round(state.upload([state.dummy] * rows), key)

    def prefill(self, lengths: Iterable[int], *, behind: int = 0) -> None:
        """Chunks of these many tokens, each `behind` so many, through every model, in one packed forward each."""
        state = self._round.state
        chunks = [Chunk(state.dummy, behind, behind + length) for length in lengths]
        for runner in self._runners:
            prefill(runner, state, chunks, page_size=self._config.page_size)

    def widest_round(self) -> None:
        """Greedy, of all slots."""
        config = self._config
        proposer: ProposerName = self._proposers[0] if self._proposers else "none"
        key = RoundKey.of([SamplingParams()], proposer, config.max_k, width=config.pages_per_row)
        self._round_of(config.slots, key)

    def widest_prefill(self) -> None:
        """A whole budget."""
        full, rest = divmod(self._config.prefill_budget, self._config.max_model_len)
        self.prefill([self._config.max_model_len] * full + [rest] * (rest > 0))

    def _padded_prefill(self, size: int) -> None:
        for runner in self._runners:
            rehearse_padded(runner, self._round.state, size)

    def widest_graphed_prefill(self) -> None:
        """Of the largest size that is padded to."""
        self._padded_prefill(sizes_for(self._config.prefill_budget)[-1])

    def run_all(self, sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]]) -> None:
        """Rounds of few and many such rows with these proposers and K, prefills of few and many, short and long
        prompts, catching up with long rows. What can differ in how kernels are launched does so between powers of two.
        """
        for key in keys_of(sampling, choices, width=self._config.pages_per_row):
            for rows in reversed(_powers_of_2(self._config.slots)):
                self._round_of(rows, key)
        self.widest_round()
        for size in sizes_for(self._config.prefill_budget):
            self._padded_prefill(size)
        self._prefills()
        self.widest_prefill()

    def _prefills(self) -> None:
        budget = self._config.prefill_budget
        lengths = _powers_of_2(min(self._config.max_model_len, budget))
        some = _powers_of_2(min(self._config.slots, MOST_PROMPTS))
        for tokens in sorted({*lengths, *(max(1, n - 1) for n in lengths)}):  # a page ends between
            self.prefill([tokens] * (budget // tokens))
            for rows in some:
                self.prefill([tokens] + [1] * (rows - 1))
        for rows in some:
            self.prefill([1] * rows, behind=self._config.max_model_len - 1)


def _powers_of_2(limit: int) -> list[int]:
    """1, 2, 4, … below limit, and limit itself."""
    return [*(2**i for i in range(limit.bit_length()) if 2**i < limit), limit]
