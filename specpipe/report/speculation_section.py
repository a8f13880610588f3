"""How the drafts fared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specpipe.report.elements import Figure, ReportSection, Table, count, fixed, percent
from specpipe.report.plots import bars, plot
from specpipe.report.run_source import RunSource


def speculation(source: RunSource) -> ReportSection:
    summary = source.summary
    if not summary["spec_decode_num_drafts"]:
        return ReportSection(title="Speculation", intro="None: every token was decoded plainly.")
    return ReportSection(
        title="Speculation",
        intro="Unconditional: accepted of all drafts that reached so far. Conditional: accepted of those whose earlier "
        "tokens were all accepted.",
        facts=[
            ("Acceptance length", fixed(summary["spec_decode_acceptance_length"])),
            ("Acceptance rate", percent(summary["spec_decode_acceptance_rate"], 1)),
            ("Draft tokens", count(summary["spec_decode_draft_tokens"])),
            ("Accepted tokens", count(summary["spec_decode_accepted_tokens"])),
            ("Recovered tokens", count(summary["spec_decode_recovered_tokens"])),
            ("Bonus tokens", count(summary["spec_decode_bonus_tokens"])),
        ],
        figures=[_acceptance(summary), _histogram(summary["k_histogram"])],
    )


def _acceptance(summary: Mapping[str, Any]) -> Figure:
    conditional = summary["spec_decode_per_position_conditional_rates"]
    unconditional = summary["spec_decode_per_position_acceptance_rates"]
    positions = [str(i) for i in range(1, len(conditional) + 1)]
    alt = "Acceptance by position of the draft token: " + ", ".join(
        f"{i}: {percent(u)} of all, {percent(c)} if reached"
        for i, u, c in zip(positions[:5], unconditional, conditional, strict=False)
    )
    series = {"unconditional": unconditional, "conditional": conditional}
    return Figure(
        title="Acceptance by position",
        alt=alt,
        svg=plot("acceptance", alt, bars(positions, series, "position of the draft token")),
        table=Table(
            head=("position", "unconditional", "conditional"),
            rows=[
                (i, percent(u, 1), percent(c, 1)) for i, u, c in zip(positions, unconditional, conditional, strict=True)
            ],
        ),
    )


def _histogram(rows: Mapping[str, int]) -> Figure:
    total = sum(rows.values())
    shares = {k: rows.get(k, 0) / total for k in (str(i) for i in range(max(map(int, rows)) + 1))}
    alt = "Share of row-rounds by K: " + ", ".join(f"K={k} {percent(share)}" for k, share in shares.items() if share)
    return Figure(
        title="K of row-rounds",
        alt=alt,
        svg=plot("k-histogram", alt, bars(list(shares), {"row-rounds": list(shares.values())}, "K")),
        table=Table(
            head=("K", "row-rounds", "share"),
            rows=[(k, count(rows.get(k, 0)), percent(share, 1)) for k, share in shares.items()],
        ),
    )
