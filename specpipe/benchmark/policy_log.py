"""Evidence of simulated rounds."""

from __future__ import annotations

from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.benchmark.policy_worker import Played
from specpipe.core import AcceptanceCounts, CostPoint, Evidence, ProposerName


class RoundLog:
    """What simulated rounds show to those who measure them."""

    def __init__(self) -> None:
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
        self._rounds: dict[ProposerName, int] = {}
        self._row_rounds: dict[ProposerName, int] = {}
        self._costs: dict[tuple[ProposerName, int, int], list[float]] = {}
        self._ended = [0, 0, 0]
        self._prefill = [0, 0.0]

    def add(self, played: Played, seconds: float, scenario: Scenario) -> None:
        """`seconds`: as measured."""
        if played.k:
            who = played.proposer
            self._verified[who] = self._verified.get(who, AcceptanceCounts()) + played.verified
            self._rounds[who] = self._rounds.get(who, 0) + 1
            self._row_rounds[who] = self._row_rounds.get(who, 0) + played.running
        shape = (played.proposer if played.k else "none", played.k, played.running)
        cell = self._costs.setdefault(shape, [0.0, 0.0, 0.0])
        for i, value in enumerate((1.0, seconds, played.context)):
            cell[i] += value
        self._prefill[0] += played.draft_prefill
        self._prefill[1] += played.draft_prefill * scenario.machine.draft_prefill
        ended = played.ended
        for i, value in enumerate((len(ended), scenario.input[ended].sum(), scenario.output[ended].sum())):
            self._ended[i] += int(value)

    def evidence(self) -> Evidence:
        costs = tuple(
            CostPoint(proposer=who, k=k, running=n, context=context / rounds, rounds=int(rounds), seconds=seconds)
            for (who, k, n), (rounds, seconds, context) in self._costs.items()
        )
        return Evidence(
            verified=self._verified,
            rounds=self._rounds,
            row_rounds=self._row_rounds,
            costs=costs,
            rows=self._ended[0],
            input_tokens=self._ended[1],
            output_tokens=self._ended[2],
            draft_prefill_tokens=int(self._prefill[0]),
            draft_prefill_s=self._prefill[1],
        )
