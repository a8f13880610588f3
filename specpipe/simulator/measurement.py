"""Seconds of simulated rounds as a run measures them: noise, neighbours on the machine, slow first rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, Profile, ProposerName
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.simulator.scenarios import Scenario
from specpipe.speculation.estimates.round_costs import RoundCosts

_NOISE = 0.03  # standard deviation of measured seconds, log-normal
_HICCUP = 0.002  # share of rounds that are measured three times as long
_AT_ONCE = 512  # rounds whose noise is drawn together
_STARTING_FACTOR = 6.0  # slowdown of plain rounds in the start-up profile of a busy CPU; measured: 5 to 7
_BUSY_ROUNDS, _QUIET_ROUNDS = 80.0, 160.0  # mean length of a neighbour's burst and of the pause, in plain rounds
_BUSY_FACTOR = (1.6, 2.6)  # range of the slowdown of a burst
_BURSTS = 400  # drawn for a run
_FIRST_FACTOR = 10.0  # slowdown of the first rounds of a shape
_FIRST_ROUNDS = 3  # most rounds of a shape that count as its first
_CACHED_CONTEXTS = (128.0, 512.0)  # tokens a row


class Noise:
    """Factors of measured seconds, in order, the same for every policy."""

    def __init__(self, seed: list[int], recorded: Array | None = None) -> None:
        """recorded: factors to repeat from a random one on, instead of drawn ones."""
        self._rng, self._recorded = np.random.default_rng(seed), recorded
        self._factors: list[float] = []

    def next(self) -> float:
        """Returns the factor of the next measurement."""
        if not self._factors and self._recorded is not None:
            self._factors = np.roll(self._recorded, self._rng.integers(len(self._recorded))).tolist()[::-1]
        elif not self._factors:
            drawn = np.exp(_NOISE * self._rng.standard_normal(_AT_ONCE))
            drawn[self._rng.random(_AT_ONCE) < _HICCUP] *= 3.0
            self._factors = drawn.tolist()[::-1]
        return self._factors.pop()


class _Neighbours:
    """Bursts of load that come and go, by the clock of the run."""

    def __init__(self, seed: list[int], round_s: float) -> None:
        """round_s: seconds of a plain round with all slots."""
        rng = np.random.default_rng(seed)
        lengths = rng.exponential([_QUIET_ROUNDS * round_s, _BUSY_ROUNDS * round_s], (_BURSTS, 2))
        self._ends = list(accumulate(lengths.ravel().tolist()))[::-1]
        self._factors = [f for busy in rng.uniform(*_BUSY_FACTOR, _BURSTS).tolist() for f in (1.0, busy)][::-1]

    def factor(self, now: float) -> float:
        """Returns the slowdown at `now` seconds, which never decreases from call to call."""
        while self._ends and self._ends[-1] < now:
            self._ends.pop()
            self._factors.pop()
        return self._factors[-1] if self._factors else 1.0


class Measurement:
    """Measured seconds of the rounds and prefills of one run, in order."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._noise = Noise([scenario.seed, 1], scenario.machine.measured)
        self._prefill_noise = Noise([scenario.seed, 2])
        self._neighbours = _Neighbours([scenario.seed, 4], scenario.plain_round_s) if scenario.neighbours else None
        self._first = 1 + scenario.seed % _FIRST_ROUNDS if scenario.slow_first_rounds else 0
        self._seen: dict[tuple[ProposerName, int, int], int] = {}
        self._clock = 0.0

    def now(self) -> float:
        """Returns the measured seconds so far."""
        return self._clock

    def round_s(self, proposer: ProposerName, k: int, rows: int, seconds: float) -> float:
        """Returns the measured seconds of the next round, which takes `seconds` on an undisturbed machine."""
        measured = self._noise.next() * seconds
        if self._neighbours is not None:
            measured *= self._neighbours.factor(self._clock)
        if self._first:
            shape = proposer, k, rows.bit_length()
            seen = self._seen.get(shape, 0)
            if seen < self._first:
                self._seen[shape] = seen + 1
                measured *= _FIRST_FACTOR
        self._clock += measured
        return measured

    def prefill_s(self, seconds: float) -> float:
        """Returns the measured seconds of the next draft prefill."""
        measured = self._prefill_noise.next() * seconds
        if self._neighbours is not None:
            measured *= self._neighbours.factor(self._clock)
        self._clock += measured
        return measured


def start_profile(scenario: Scenario) -> Profile:
    """Returns the start-up profile of a worker, with one measurement error per point.

    It measures a few rounds on a machine without load, or the first ones of a process on a CPU: those of plain decoding
    take so long that no time is left for drafts.
    """
    if scenario.profile == "none":
        return Profile(expert_share=scenario.machine.expert_share)
    machine, context, slowdown = scenario.machine, float(PROFILED_CONTEXT), 1.0
    shapes = rounds_to_profile(scenario.slots, scenario.max_k, scenario.proposers)
    if scenario.profile == "slow plain rounds":
        shapes, slowdown = [shape for shape in shapes if shape[1] == "none"], _STARTING_FACTOR
    timed = _off(scenario, [slowdown * machine.profiled(who, k, rows, context) for rows, who, k in shapes])
    return Profile(
        rounds=tuple(
            CostPoint(proposer=who, k=k, running=rows, context=context, rounds=5, seconds=5 * seconds)
            for (rows, who, k), seconds in zip(shapes, timed, strict=True)
        ),
        expert_share=machine.expert_share,
    )


def _off(scenario: Scenario, seconds: list[float]) -> list[float]:
    """Returns seconds with measurement errors."""
    errors = np.random.default_rng([scenario.seed, 3]).standard_normal(len(seconds))
    off: list[float] = (np.array(seconds) * np.exp(_NOISE * errors)).tolist()
    return off


def cached_costs(scenario: Scenario) -> RoundCosts:
    """Returns the costs that earlier runs left in the cache, as the scenario says."""
    rows = [2**i for i in range(int(math.log2(scenario.slots)) + 1)]
    if scenario.cache == "slower machine":
        choices: list[tuple[ProposerName, int]] = [("none", 0)]
        choices += [(who, k) for who in scenario.proposers for k in range(1, scenario.max_k + 1)]
        return _cached(_points(scenario, 64, 2.0, who, k, n) for who, k in choices for n in rows)
    if scenario.cache == "one slow round":  # a run of a few rows decoded plainly after its first draft round
        plain = [_points(scenario, 40, 1.0, "none", 0, n) for n in rows if n <= 8]
        return _cached([*plain, _points(scenario, 1, _FIRST_FACTOR, scenario.proposers[0], 2, 1)])
    return RoundCosts()


def _cached(points: Iterable[CostPoint]) -> RoundCosts:
    return RoundCosts.from_json(RoundCosts().with_points(points).to_json())


def _points(scenario: Scenario, rounds: int, slowdown: float, who: ProposerName, k: int, rows: int) -> CostPoint:
    """Returns rounds at a context drawn by shape."""
    context = _CACHED_CONTEXTS[(rows + k) % len(_CACHED_CONTEXTS)]
    seconds = rounds * slowdown * scenario.machine.seconds(who, k, rows, context)
    return CostPoint(proposer=who, k=k, running=rows, context=context, rounds=rounds, seconds=seconds)
