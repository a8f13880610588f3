"""`specpipe bench engine --policy`: whole jobs, tuned, against fixed K."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from specpipe.errors import JobError

if TYPE_CHECKING:
    from specpipe.benchmark.policy_comparison import Comparison
    from specpipe.benchmark.synthetic_engine import EngineBench


def run_jobs(bench: EngineBench, what: Comparison, *, as_json: bool) -> None:
    """Prints each result as it comes. Raises JobError for acceptance that has no name."""
    from specpipe.benchmark.policy_comparison import ACCEPTANCE, compare
    from specpipe.benchmark.synthetic_engine import build_synthetic_engine

    if unknown := [name for name in what.acceptance if name not in ACCEPTANCE]:
        raise JobError(f"--acceptance is {unknown[0]!r}; expected one of {', '.join(ACCEPTANCE)}")
    for found in compare(build_synthetic_engine(bench), what):
        text = json.dumps(found) if as_json else _text(found)
        if text:
            click.echo(text)


def _text(found: dict[str, Any]) -> str:
    if "profile" in found:
        points = (f"{p['proposer']} K={p['k']} at {p['running']} rows" for p in found["profile"]["rounds"])
        times = (f"{1e3 * p['seconds'] / p['rounds']:.2f} ms" for p in found["profile"]["rounds"])
        return "rounds at the start: " + ", ".join(f"{name} {ms}" for name, ms in zip(points, times, strict=True))
    if "sequence" in found:
        return (
            f"{' → '.join(found['sequence'])}: {found['seconds']:.1f} s, "
            f"{found['share_of_best_fixed']:.1%} of the speed of the best fixed K ({found['best_fixed_k']})"
        )
    if "share_of_best_fixed" in found:
        return (
            f"{found['acceptance']}: {found['share_of_best_fixed']:.1%} of the best fixed K ({found['best_fixed_k']}), "
            f"{found['share_of_plain']:.1%} of plain decoding"
        )
    if "share_of_better" in found:
        return (
            f"speculation {found['to']} (K={found['k']}): {found['before']:,.0f} → {found['after']:,.0f} tok/s, worst "
            f"2 s {found['worst']:,.0f}, {found['share_of_better']:.1%} of the better side, "
            f"{found['share_of_expected']:.1%} of what both sides make of it"
        )
    who = f"K={found['k']}" if "k" in found else found["policy"]
    rounds = ", ".join(f"K={k}: {count}" for k, count in found["k_rounds"].items())
    if late := [*found["late_kernels"], *["a graph"] * found["late_graphs"]]:
        rounds += f"   compiled or captured meanwhile: {', '.join(late)}"
    return (
        f"{found['acceptance']:<8} {who:<16} {found['tokens_per_s']:10,.0f} tok/s   acceptance length "
        f"{found['acceptance_length']:.2f}   rounds {rounds}"
    )
