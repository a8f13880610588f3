"""Section on goodput: expected against measured throughput, and the run against the best fixed K."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.report.binned_timeline import bin_timelines
from specpipe.report.elements import Figure, ReportSection, Table
from specpipe.report.number_format import decimal, percent
from specpipe.report.plots import bars_across, plot
from specpipe.report.run_source import RunSource
from specpipe.report.timeline_section import timeline_figure
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.telemetry.shard_table import total

_MAX_BARS = 7  # fixed K shown beside the run


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedKComparison:
    """Decoding speed of one worker as estimated from the cost table, at the occupancies that the run had."""

    as_run: float
    """Output tokens per second with the K that the run used in each second."""
    by_k: tuple[float, ...]
    """Output tokens per second with the same K all the time; index is K."""

    @property
    def best_k(self) -> int:
        """The fastest fixed K."""
        return int(np.argmax(self.by_k))

    @property
    def regret(self) -> float:
        """Share of time that the best fixed K would have saved; negative if the run was faster than all of them."""
        return 1 - self.as_run / self.by_k[self.best_k]


def compare_with_fixed_k(
    samples: Array, costs: RoundCosts, conditional: Sequence[float], proposer: ProposerName, context: float
) -> FixedKComparison:
    """Estimates the run's decoding speed and that of every fixed K.

    Seconds per token = seconds(K, n) / (n · (1 + Σ_i Π_{j ≤ i} c_j)) with n rows and conditional acceptance c_j. The
    mean K of a second may be fractional: its seconds are interpolated between the two nearest K.

    Args:
        samples: [S, 3] output tokens, occupancy and mean K of one second of one worker.
        costs: Seconds of a round by K and number of rows.
        conditional: Acceptance rate by position, given that all earlier positions were accepted.
        proposer: Proposer of the draft tokens.
        context: Mean tokens of a row.
    """
    tokens, rows, k = samples[samples[:, 1] > 0].T
    slots, max_k = int(np.ceil(rows.max())), len(conditional)
    round_s = costs.grid(proposer=proposer, max_k=max_k, slots=slots, context=context)
    tokens_per_row = np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(conditional))])
    token_s = round_s / (np.maximum(np.arange(slots + 1), 1) * tokens_per_row[:, None])  # [K + 1, N + 1]
    occupied = np.clip(np.rint(rows), 1, slots).astype(int)
    below = np.clip(np.floor(k), 0, max(0, max_k - 1)).astype(int)
    above = np.minimum(below + 1, max_k)
    share_above = np.clip(k - below, 0.0, 1.0)
    run_token_s = (1 - share_above) * token_s[below, occupied] + share_above * token_s[above, occupied]
    total_tokens = float(tokens.sum())
    return FixedKComparison(
        as_run=total_tokens / float(tokens @ run_token_s), by_k=tuple(total_tokens / (token_s[:, occupied] @ tokens))
    )


def goodput_section(source: RunSource) -> ReportSection | None:
    """Returns the section on goodput; None if the run has neither expectations nor costs."""
    figures = [*_expected_figures(source), *_fixed_k_figures(source)]
    if not figures:
        return None
    return ReportSection(
        title="Goodput",
        intro="Expected: output tokens per second that the policy's plans predicted, without prefill. Best fixed K: "
        "estimated from the measured round times and the run's acceptance, at the occupancies that the run had.",
        figures=figures,
    )


def _expected_figures(source: RunSource) -> Iterable[Figure]:
    timeline = bin_timelines(source.timelines)
    if timeline is None or not np.nansum(timeline.expected_tokens_per_s) > 0:
        return
    series = {"measured": timeline.tokens_per_s, "expected": timeline.expected_tokens_per_s}
    yield timeline_figure(timeline, "Expected and measured tokens per second", "expected", series, 0)


def _fixed_k_figures(source: RunSource) -> Iterable[Figure]:
    conditional = source.summary["spec_decode_per_position_conditional_rates"]
    by_start = [
        np.stack([table[name].to_numpy() for name in ("output_tokens", "occupancy", "k")], axis=1).astype(np.float64)
        for table in source.timelines
    ]
    samples = np.concatenate(by_start) if by_start else np.zeros((0, 3))
    if source.costs is None or not conditional or not samples[:, 0].sum() or not (samples[:, 1] > 0).any():
        return
    compared = compare_with_fixed_k(samples, source.costs, conditional, _proposer(source), _mean_context(source))
    yield _fixed_k_figure(compared)


def _fixed_k_figure(compared: FixedKComparison) -> Figure:
    names = ["as run", *(f"K={k}" for k in range(len(compared.by_k)))]
    speeds = [compared.as_run, *compared.by_k]
    best = compared.by_k[compared.best_k]
    relation = "slower than" if compared.regret > 0 else "faster than"
    verdict = f"{percent(abs(compared.regret), 1)} {relation} K={compared.best_k}"
    alt = f"Decoding speed by the cost table: as run {decimal(compared.as_run, 0)} tokens/s per worker, {verdict}"
    shown = sorted([0, *(1 + np.argsort(compared.by_k)[::-1][:_MAX_BARS]).tolist()])  # the run and the fastest K
    return Figure(
        title=f"Run and best fixed K: {verdict}",
        alt=alt,
        svg=plot(
            "fixed-k",
            alt,
            bars_across(
                [names[i] for i in shown],
                [speeds[i] for i in shown],
                [decimal(speeds[i], 0) for i in shown],
            ),
        ),
        table=Table(
            head=("K", "tokens/s per worker", "against the best"),
            rows=[
                (name, decimal(speed, 1), percent(speed / best - 1, 1))
                for name, speed in zip(names, speeds, strict=True)
            ],
        ),
    )


def _proposer(source: RunSource) -> ProposerName:
    """Returns the proposer that most shards began with; "draft" where all of them began without drafts."""
    names = Counter(name for name in source.shards["plan_proposer"].to_pylist() if name != "none")
    return max(get_args(ProposerName), key=lambda name: names[name])


def _mean_context(source: RunSource) -> float:
    """Returns the mean tokens of a row halfway through its output."""
    rows = max(1, total(source.shards, "rows"))
    return float((total(source.shards, "input_tokens") + total(source.shards, "output_tokens") / 2) / rows)
