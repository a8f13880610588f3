"""`specpipe bench policy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specpipe.simulator.simulation import SimulationResult


@click.command(short_help="The goodput policy against an oracle and fixed K, simulated.")
@click.option(
    "--scenarios", metavar="FILE", help="A file of your own; the one that comes with specpipe explains itself."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first so many scenarios of a family.")
@click.option("--seed", type=click.IntRange(0), help="Other scenarios of the same families; default: the file's.")
@click.option(
    "--warm-up", default=50, show_default=True, type=click.IntRange(0), help="Rounds before the comparison begins."
)
@click.option(
    "--processes", type=click.IntRange(1), help="Scenarios that are played at once; default: one for each core."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line and scenario.")
def policy(
    scenarios: str | None, limit: int | None, seed: int | None, warm_up: int, processes: int | None, as_json: bool
) -> None:
    """Plays seeded scenarios through the policy that runs use; only the rounds are simulated.

    Prints, by family, how much longer the policy takes after the warm-up than an oracle that knows what rounds take and
    what is accepted, and than the scenario's best fixed K: median, 95th percentile and worst.
    """
    import dataclasses
    import json
    from itertools import islice

    from specpipe.simulator.scenarios import families, load_scenarios
    from specpipe.simulator.simulation import simulate_all

    chosen = list(families(load_scenarios(scenarios, seed=seed), limit=limit))
    played = simulate_all([one for _, members in chosen for one in members], warm_up=warm_up, processes=processes)
    if not as_json:
        click.echo(f"{'family':<18} {'runs':>5} {'rounds':>9}   {'over the oracle':<25} over the best fixed K")
    everything = []
    for name, members in chosen:
        results = []
        for result in islice(played, len(members)):
            results.append(result)
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(results[-1])))
        if not as_json:
            click.echo(_line(name, results))
        everything += results
    if not as_json and everything:
        click.echo(_line("all", everything))


def _line(name: str, results: Sequence[SimulationResult]) -> str:
    spreads = [_spread([o.against_oracle for o in results]), _spread([o.against_fixed for o in results])]
    return f"{name:<18} {len(results):>5} {sum(o.rounds for o in results):>9,}   {'   '.join(spreads)}"


def _spread(values: Sequence[float]) -> str:
    import numpy as np

    median, high = np.quantile(values, [0.5, 0.95])
    return f"{median:>6.1%} {high:>7.1%} {max(values):>7.1%}"
