"""Throughput around the moments at which speculation goes off and on, while all slots are full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from specpipe.core import Request, SpeculationPlan
from specpipe.engine.engine import Engine

WINDOW_S = 2.0
_LEAST_READY = 0.75  # of the rows: with many it is about what goodput asks for
_PERIOD_S = 4.0  # between two switches: a window on either side that no other switch touches
SWITCHES_S = 5.5 * _PERIOD_S
"""Full slots for as long as this show two switches and what follows them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One switch. Throughput in tokens per second."""

    at_s: float
    to: str
    """"on" or "off"."""
    before: float
    """Of the WINDOW_S seconds that end with the switch."""
    after: float
    """Of those that end with the next switch, when all has settled."""
    worst: float
    """Of the WINDOW_S seconds, wherever they begin from WINDOW_S before the switch to the switch."""
    share_of_better: float
    """worst / max(before, after)."""
    share_of_expected: float
    """Least share, over these windows, of what their seconds on either side would make at that side's throughput."""


def switch_windows(
    engine: Engine, rows: Sequence[Request], *, k: int, period_s: float = _PERIOD_S, window_s: float = WINDOW_S
) -> list[Switch]:
    """Runs rows with K = k and 0 by turns for as long as rows wait for slots; then lets them end."""
    on = SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="switch", least_ready=_LEAST_READY)
    turns = cycle([on, replace(on, ks=(0,))])
    plan = next(turns)
    engine.submit(rows, plan)
    switches: list[tuple[float, str]] = []
    emissions: list[tuple[float, int]] = []
    began, full_until = time.perf_counter(), 0.0
    next_switch = 2 * period_s  # the slots fill up first
    while (step := engine.step()) is not None:
        now = time.perf_counter() - began
        emissions.append((now, sum(part.emitted_tokens for part in step.shards.values())))
        if step.waiting:
            full_until = now
        if step.waiting and now >= next_switch:
            plan = next(turns)
            engine.submit([], plan)
            switches.append((now, "on" if plan.max_k else "off"))
            next_switch = now + period_s
    ends = ([at for at, _ in switches] + [full_until])[1:]
    return [
        measured
        for (at, to), end in zip(switches, ends, strict=True)
        if end - at >= 2 * window_s and (measured := _around(emissions, at, to, end, window_s))
    ]


def _around(emissions: Sequence[tuple[float, int]], at: float, to: str, end: float, window_s: float) -> Switch:
    times = np.array([0.0, *(when for when, _ in emissions)])
    made = np.concatenate([[0.0], np.cumsum([tokens for _, tokens in emissions])])

    def rate(start: float, stop: float) -> float:
        return float((np.interp(stop, times, made) - np.interp(start, times, made)) / (stop - start))

    before, after = rate(at - window_s, at), rate(end - window_s, end)
    starts = np.linspace(at - window_s, at, 101)
    rates = np.array([rate(start, start + window_s) for start in starts])
    left = (at - starts) / window_s  # share of the window that lies before the switch
    return Switch(
        at_s=at,
        to=to,
        before=before,
        after=after,
        worst=float(rates.min()),
        share_of_better=float(rates.min() / max(before, after)),
        share_of_expected=float((rates / (left * before + (1 - left) * after)).min()),
    )
