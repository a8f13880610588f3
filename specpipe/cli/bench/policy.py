"""`specpipe bench policy`: the goodput policy in simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from specpipe.cli.options import json_option

if TYPE_CHECKING:
    from specpipe.simulator.simulation import SimulationResult

_BEHIND = 0.03  # excess over the best fixed K from which a scenario counts as behind


@click.command(short_help="The goodput policy against an oracle and fixed K, simulated.")
@click.option("--scenarios", metavar="FILE", help="Scenarios to simulate; default: the file that comes with specpipe.")
@click.option("--family", "only", multiple=True, metavar="NAME", help="Simulate only this family; repeatable.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Simulate only the first N scenarios of each family."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Scenarios of each family; default: as in the file.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the scenarios; default: that of the file.")
@click.option("--held-out", is_flag=True, help="Draw a seed on which nothing was tuned, and print it.")
@click.option(
    "--warm-up",
    default=50,
    show_default=True,
    type=click.IntRange(0),
    metavar="ROUNDS",
    help="Rounds of each scenario that are not compared.",
)
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Scenarios simulated at once; default: one per core."
)
@json_option("Print one JSON object per line and scenario.")
def policy(
    scenarios: str | None,
    only: tuple[str, ...],
    limit: int | None,
    count: int | None,
    seed: int | None,
    held_out: bool,
    warm_up: int,
    processes: int | None,
    as_json: bool,
) -> None:
    """Simulate many runs under the goodput policy and compare them with an oracle and with fixed K.

    The policy is the one that runs use; only the rounds are simulated. Prints, for each family of scenarios, by how
    much the policy's seconds after the warm-up exceed two references: an oracle with exact round times and acceptance,
    and the scenario's best fixed K. Columns are median, 95th percentile and maximum; the last one is the share of
    scenarios in which the policy is more than 3 % behind the best fixed K.
    """
    import dataclasses
    import json
    import secrets
    from itertools import islice

    from specpipe.simulator.scenarios import families, load_scenarios
    from specpipe.simulator.simulation import simulate_all

    if held_out:
        if seed is not None:
            raise click.UsageError("--seed and --held-out were given; expected one of them")
        seed = secrets.randbelow(2**31)
        click.echo(f"seed {seed}", err=as_json)
    chosen = list(families(load_scenarios(scenarios, seed=seed, count=count), limit=limit, only=only))
    simulated = simulate_all([one for _, members in chosen for one in members], warm_up=warm_up, processes=processes)
    if not as_json:
        click.echo(
            f"{'family':<26} {'runs':>5} {'rounds':>9}   {'over the oracle':<25} {'over the best fixed K':<25} behind"
        )
    all_results = []
    for name, members in chosen:
        results = []
        for result in islice(simulated, len(members)):
            results.append(result)
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(result)))
        if not as_json:
            click.echo(_family_line(name, results))
        all_results += results
    if not as_json and all_results:
        click.echo(_family_line("all", all_results))


def _family_line(name: str, results: Sequence[SimulationResult]) -> str:
    fixed = [r.against_fixed for r in results]
    spreads = [_spread([r.against_oracle for r in results]), _spread(fixed)]
    behind = sum(excess > _BEHIND for excess in fixed) / len(fixed)
    return f"{name:<26} {len(results):>5} {sum(r.rounds for r in results):>9,}   {'   '.join(spreads)}   {behind:>6.1%}"


def _spread(values: Sequence[float]) -> str:
    """Returns median, 95th percentile and maximum as percentages."""
    import numpy as np

    median, high = np.quantile(values, [0.5, 0.95])
    return f"{median:>6.1%} {high:>7.1%} {max(values):>7.1%}"
