"""Throughput around the moments when speculation is switched off and on, with all slots full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

import numpy as np

from specpipe.core import Request, SpeculationPlan
from specpipe.engine.engine import Engine

WINDOW_S = 2.0
_PERIOD_S = 4.0  # between two switches, so that the windows before and after one contain no other switch
SWITCHES_S = 5.5 * _PERIOD_S
"""Seconds with full slots that are needed to measure two switches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Throughput around one switch, in tokens per second."""

    at_s: float
    """Seconds since the first row was submitted."""
    to: Literal["on", "off"]
    """State of speculation after the switch."""
    before: float
    """Mean of the WINDOW_S seconds that end at the switch."""
    after: float
    """Mean of the WINDOW_S seconds that end at the next switch, when throughput has settled."""
    worst: float
    """Minimum over all windows of WINDOW_S seconds that contain the switch."""
    share_of_better: float
    """worst / max(before, after)."""
    share_of_expected: float
    """Minimum over these windows of their tokens, divided by the tokens that their seconds before and after the switch
    would yield at `before` and `after`."""


def measure_switches(
    engine: Engine, rows: Sequence[Request], *, k: int, period_s: float = _PERIOD_S, window_s: float = WINDOW_S
) -> list[Switch]:
    """Alternates between K = k and K = 0 while rows wait for slots, then runs the remaining rows to completion.

    Returns the switches whose windows contain no other switch. `period_s`: seconds between two switches; `window_s`:
    length of a window in seconds.
    """
    on = SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="switch")
    plans = cycle([on, replace(on, ks=(0,))])
    plan = next(plans)
    engine.submit(rows, plan)
    switches: list[tuple[float, Literal["on", "off"]]] = []
    emissions: list[tuple[float, int]] = []
    began, full_until = time.perf_counter(), 0.0
    next_switch = 2 * period_s  # the slots fill up first
    while (step := engine.step()) is not None:
        now = time.perf_counter() - began
        emissions.append((now, sum(part.emitted_tokens for part in step.shards.values())))
        if step.waiting:
            full_until = now
        if step.waiting and now >= next_switch:
            plan = next(plans)
            engine.submit([], plan)
            switches.append((now, "on" if plan.max_k else "off"))
            next_switch = now + period_s
    ends = ([at for at, _ in switches] + [full_until])[1:]
    return [
        measured
        for (at, to), end in zip(switches, ends, strict=True)
        if end - at >= 2 * window_s and (measured := throughput_around(emissions, at, to, end, window_s))
    ]


def throughput_around(
    emissions: Sequence[tuple[float, int]], at: float, to: Literal["on", "off"], end: float, window_s: float
) -> Switch:
    """Returns the throughput around the switch at `at`, followed by the next one at `end`.

    emissions: (seconds since the start, emitted tokens) of every step.
    """
    times = np.array([0.0, *(at_s for at_s, _ in emissions)])
    total = np.concatenate([[0.0], np.cumsum([tokens for _, tokens in emissions])])

    def rate(start: float, stop: float) -> float:
        return float((np.interp(stop, times, total) - np.interp(start, times, total)) / (stop - start))

    before, after = rate(at - window_s, at), rate(end - window_s, end)
    starts = np.linspace(at - window_s, at, 101)
    rates = np.array([rate(start, start + window_s) for start in starts])
    share_before = (at - starts) / window_s  # share of each window that lies before the switch
    return Switch(
        at_s=at,
        to=to,
        before=before,
        after=after,
        worst=float(rates.min()),
        share_of_better=float(rates.min() / max(before, after)),
        share_of_expected=float((rates / (share_before * before + (1 - share_before) * after)).min()),
    )
