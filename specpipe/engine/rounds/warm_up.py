"""Rounds and prefills of the dummy slot: they cost what real ones cost and change no row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specpipe.core import EngineConfig, ProposerName, SamplingParams
from specpipe.engine.forward.graphed_prefill import graph_sizes, prefill_dummy
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.prefill import prefill
from specpipe.engine.forward.round_rows import RowLayouts
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_inputs import dummy_inputs, split_inputs
from specpipe.engine.rounds.round_key import RoundKey, expected_keys
from specpipe.engine.state.chunks import Chunk

MAX_PROMPTS = 64
"""Prompts of one prefill; more of them launch the same kernels."""


class WarmUp:
    """Runs an engine's operations eagerly, to compile their kernels or to measure their memory."""

    def __init__(
        self, round_: Round, runners: Sequence[ModelRunner], config: EngineConfig, proposers: Sequence[ProposerName]
    ) -> None:
        """proposers: those of the engine."""
        self._round, self._runners, self._config, self._proposers = round_, runners, config, proposers

    def _run_round(self, rows: int, key: RoundKey) -> None:
        state = self._round.state
        packed = state.upload(dummy_inputs(rows, shared=key.shared, dummy=state.dummy))
        self._round(split_inputs(packed, rows, shared=key.shared), key, RowLayouts())

    def prefill(self, lengths: Iterable[int], *, first: int = 0) -> None:
        """Runs one packed prefill through every model. lengths: tokens of each chunk; first: their first position."""
        state = self._round.state
        chunks = [Chunk(state.dummy, first, first + length) for length in lengths]
        for runner in self._runners:
            prefill(runner, state, chunks, page_size=self._config.page_size)

    def largest_round(self) -> None:
        """Runs a greedy round of all slots with each proposer's largest K."""
        config = self._config
        shared = config.prefix_sharing and config.slots > 1
        for proposer in self._proposers or ("none",):
            k = config.largest_k(proposer)
            key = RoundKey.of([SamplingParams()], proposer, k, width=config.pages_per_row, shared=shared)
            self._run_round(config.slots, key)

    def largest_prefill(self) -> None:
        """Runs a prefill of a whole budget."""
        full, rest = divmod(self._config.prefill_budget, self._config.max_model_len)
        self.prefill([self._config.max_model_len] * full + [rest] * (rest > 0))

    def _padded_prefill(self, size: int) -> None:
        for runner in self._runners:
            prefill_dummy(runner, self._round.state, size)

    def largest_graphed_prefill(self) -> None:
        """Runs a prefill of the largest size that is captured as a graph."""
        self._padded_prefill(graph_sizes(self._config.prefill_budget)[-1])

    def run_all(self, sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]]) -> None:
        """Runs one of every kind of round and prefill that launches kernels of its own.

        Rounds of few and many rows with these sampling parameters, proposers and K; prefills of few and many, short
        and long prompts; catch-up of long rows. Launches differ only between powers of two.
        """
        keys = expected_keys(sampling, choices, width=self._config.pages_per_row)
        if self._config.prefix_sharing:
            keys += [key._replace(shared=True) for key in keys]
        for key in keys:
            for rows in reversed(_powers_of_2(self._config.slots)):
                if rows > 1 or not key.shared:
                    self._run_round(rows, key)
        self.largest_round()
        for size in graph_sizes(self._config.prefill_budget):
            self._padded_prefill(size)
        self._run_prefills()
        self.largest_prefill()

    def _run_prefills(self) -> None:
        budget = self._config.prefill_budget
        lengths = _powers_of_2(min(self._config.max_model_len, budget))
        row_counts = _powers_of_2(min(self._config.slots, MAX_PROMPTS))
        for tokens in sorted({*lengths, *(max(1, n - 1) for n in lengths)}):  # a page ends between n - 1 and n
            self.prefill([tokens] * (budget // tokens))
            for rows in row_counts:
                self.prefill([tokens] + [1] * (rows - 1))
        for rows in row_counts:
            self.prefill([1] * rows, first=self._config.max_model_len - 1)


def _powers_of_2(limit: int) -> list[int]:
    """Returns 1, 2, 4, … below limit, and limit itself."""
    return [*(2**i for i in range(limit.bit_length()) if 2**i < limit), limit]
