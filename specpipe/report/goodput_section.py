"""What plans expected against what came, and what the best fixed K would have come to by the cost table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.report.binned_timeline import bin_timelines
from specpipe.report.elements import Figure, ReportSection, Table, fixed, percent
from specpipe.report.plots import bars_across, plot
from specpipe.report.run_source import RunSource
from specpipe.report.timeline_section import over_time_figure
from specpipe.speculation.cost_table import CostTable
from specpipe.telemetry.shard_table import total

_BARS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedKComparison:
    """Decoding speeds of a worker by the cost table, at the occupancies that the run had."""

    as_run: float
    """Output tokens per second, with the K of every second as it was."""
    by_k: tuple[float, ...]
    """With one K all the time, from 0."""

    @property
    def best_k(self) -> int:
        return int(np.argmax(self.by_k))

    @property
    def regret(self) -> float:
        """Share of time that the best fixed K would have saved; negative where the run beat every one."""
        return 1 - self.as_run / self.by_k[self.best_k]


def compare_with_fixed_k(
    samples: Array, costs: CostTable, conditional: Sequence[float], proposer: ProposerName, context: float
) -> FixedKComparison:
    """samples: [S, 3] output tokens, occupancy and K of a second of a worker. `conditional`: acceptance by position.

    Seconds a token = seconds(K, n) / (n · (1 + Σ_i Π_{j ≤ i} c_j)); K between whole ones lies between their seconds.
    """
    tokens, rows, k = samples[samples[:, 1] > 0].T
    slots, widest = int(np.ceil(rows.max())), len(conditional)
    seconds = costs.grid(proposer=proposer, max_k=widest, slots=slots, context=context).seconds
    yields = np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(conditional))])
    a_token = seconds / (np.maximum(np.arange(slots + 1), 1) * yields[:, None])  # [K + 1, N + 1]
    occupied = np.clip(np.rint(rows), 1, slots).astype(int)
    below = np.clip(np.floor(k), 0, max(0, widest - 1)).astype(int)
    above = np.minimum(below + 1, widest)
    share = np.clip(k - below, 0.0, 1.0)
    took = (1 - share) * a_token[below, occupied] + share * a_token[above, occupied]
    made = float(tokens.sum())
    return FixedKComparison(as_run=made / float(tokens @ took), by_k=tuple(made / (a_token[:, occupied] @ tokens)))


def goodput(source: RunSource) -> ReportSection | None:
    """None for a run that left neither expectations nor costs."""
    figures = [*_expected(source), *_fixed_ks(source)]
    if not figures:
        return None
    return ReportSection(
        title="Goodput",
        intro="Expected: output tokens per second by the plans that ruled, prefill apart. The best fixed K: by the "
        "cost table (what rounds of each shape took) and the run's acceptance, at the occupancies that it had.",
        figures=figures,
    )


def _expected(source: RunSource) -> Iterable[Figure]:
    timeline = bin_timelines(source.timelines)
    if timeline is None or not np.nansum(timeline.expected_tokens_per_s) > 0:
        return
    series = {"realised": timeline.tokens_per_s, "expected": timeline.expected_tokens_per_s}
    yield over_time_figure(timeline, "Expected and realised tokens per second", "expected", series, 0)


def _fixed_ks(source: RunSource) -> Iterable[Figure]:
    conditional = source.summary["spec_decode_per_position_conditional_rates"]
    samples = [
        np.stack([table[name].to_numpy() for name in ("output_tokens", "occupancy", "k")], axis=1).astype(np.float64)
        for table in source.timelines
    ]
    told = np.concatenate(samples) if samples else np.zeros((0, 3))
    if source.costs is None or not conditional or not told[:, 0].sum() or not (told[:, 1] > 0).any():
        return
    weighed = compare_with_fixed_k(told, source.costs, conditional, _proposer(source), _context(source))
    names = ["as run", *(f"K={k}" for k in range(len(weighed.by_k)))]
    speeds = [weighed.as_run, *weighed.by_k]
    best = weighed.by_k[weighed.best_k]
    verdict = f"{percent(abs(weighed.regret), 1)} {'behind' if weighed.regret > 0 else 'ahead of'} K={weighed.best_k}"
    alt = f"Decoding speed by the cost table: as run {fixed(weighed.as_run, 0)} tokens/s a worker, {verdict}"
    shown = sorted([0, *(1 + np.argsort(weighed.by_k)[::-1][:_BARS]).tolist()])  # the best ones
    yield Figure(
        title=f"Against the best fixed K: {verdict}",
        alt=alt,
        svg=plot(
            "fixed-k",
            alt,
            bars_across(
                [names[i] for i in shown],
                [speeds[i] for i in shown],
                [fixed(speeds[i], 0) for i in shown],
            ),
        ),
        table=Table(
            head=("K", "tokens/s a worker", "against the best"),
            rows=[
                (name, fixed(speed, 1), percent(speed / best - 1, 1)) for name, speed in zip(names, speeds, strict=True)
            ],
        ),
    )


def _proposer(source: RunSource) -> ProposerName:
    names = set(source.shards["plan_proposer"].to_pylist())
    return "ngram" if "ngram" in names and "draft" not in names else "draft"


def _context(source: RunSource) -> float:
    """Mean tokens of a row, halfway through its output."""
    rows = max(1, total(source.shards, "rows"))
    return float((total(source.shards, "input_tokens") + total(source.shards, "output_tokens") / 2) / rows)
