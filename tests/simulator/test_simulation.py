"""The simulator, and goodput against its oracle. `specpipe bench policy` prints the same figures."""

import json
import math
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from specpipe.cli.main import main
from specpipe.core import ProposerName, SpeculationPlan
from specpipe.errors import JobError
from specpipe.simulator.measurement import start_profile
from specpipe.simulator.runs import SimulatedRuns
from specpipe.simulator.scenarios import BUILT_IN, Scenario, families, load_scenarios
from specpipe.simulator.simulation import SimulationResult, simulate, simulate_all
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.goodput import Goodput

SCENARIOS = load_scenarios()


def scenario(family: str, index: int = 0, among: list[Scenario] = SCENARIOS) -> Scenario:
    return next(s for s in among if s.family == family and s.index == index)


def assert_goals_met(results: list[SimulationResult]) -> None:
    """3 % of the oracle in the median, 6 % at the 95th percentile; 3 % of the best fixed K in 95 of 100."""
    oracle = [result.against_oracle for result in results]
    assert np.median(oracle) <= 0.03
    assert np.quantile(oracle, 0.95) <= 0.06
    assert np.quantile([result.against_fixed for result in results], 0.95) <= 0.03


def test_scenario_file_has_over_two_hundred_scenarios() -> None:
    assert len(SCENARIOS) >= 200
    names = [name for name, _ in families(SCENARIOS)]
    assert {"draining queue", "bursts", "shifting shards", "mixed rows", "useless draft"} <= set(names)
    assert sum(int(s.shard[-1]) + 1 for s in SCENARIOS) > 500


def test_goodput_meets_its_goals_on_some_scenarios() -> None:
    some = ("useless draft", "draft or n-grams")
    results = [simulate(scenario(family)) for family in some]
    assert_goals_met(results)
    assert min(result.rounds for result in results) >= 150


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1])
def test_goodput_meets_its_goals_on_all_scenarios(seed: int | None) -> None:
    """Seed 1 draws scenarios that no constant was tuned on."""
    quiet = ("draining queue", "few rows", "bursts", "shifting shards", "mixed rows", "useless draft")
    names = (*quiet, "draft or n-grams", "jobs in sequence")
    results = list(simulate_all([one for _, some in families(load_scenarios(seed=seed), only=names) for one in some]))
    assert_goals_met(results)
    assert min(result.rounds for result in results) >= 150


def test_scenarios_and_results_depend_on_the_seed_alone() -> None:
    again = load_scenarios(str(BUILT_IN), seed=0, count=2)
    firsts = [one for _, some in families(SCENARIOS, limit=2) for one in some]
    assert all((a.output == b.output).all() and a.seed == b.seed for a, b in zip(firsts, again, strict=True))
    others = load_scenarios(seed=1, count=1)
    assert all(a.seed != b.seed for a, b in zip(firsts[::2], others, strict=True))
    assert simulate(scenario("few rows"), warm_up=500) == simulate(scenario("few rows", among=again), warm_up=500)


@pytest.mark.parametrize("family", [pytest.param("few rows", marks=pytest.mark.slow), "cache of one slow round"])
def test_oracle_is_never_slower_than_any_fixed_k(family: str) -> None:
    runs = SimulatedRuns(scenario(family), warm_up=50)
    runs.run_policy(Fixed(k=1, proposer="draft"))
    choices: list[tuple[ProposerName, int]] = [("none", 0), *(("draft", k) for k in range(1, 6))]
    fixed = {choice: runs.fixed_s(*choice) for choice in choices}
    best, who, k = runs.best_fixed()
    assert best == fixed[who, k] == min(fixed.values())
    assert runs.oracle_s(within_s=best) <= best
    assert runs.oracle_s(within_s=math.inf) <= 1.01 * best


@pytest.mark.parametrize(
    ("family", "k"),
    [
        ("few rows", 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("few rows", 0), ("useless draft", 1), ("bursts", 2))
        ),
    ],
)
def test_run_with_one_k_takes_the_seconds_of_the_policy_fixed(family: str, k: int) -> None:
    runs = SimulatedRuns(scenario(family), warm_up=50)
    engine = runs.run_policy(Fixed(k=k, proposer="draft"))
    assert runs.fixed_s("draft", k) == pytest.approx(engine.seconds, rel=1e-12)


def test_reference_run_repeats_a_sequence_of_plans_to_the_second() -> None:
    runs = SimulatedRuns(scenario("few rows"), warm_up=50)
    sequence = cycle((0, 2, 5))

    class Forced:
        max_k = 5

        def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
            return SpeculationPlan(ks=(next(sequence),), proposer="draft", queue_depth=0.0, reason="forced")

    engine = runs.run_policy(Forced())
    assert len({plan.ks for plan in engine.plans}) == 3
    repeated = SimulatedRuns(scenario("few rows"), warm_up=engine.rounds)
    sequence = cycle((0, 2, 5))
    again = repeated.run_policy(Forced())
    assert again.seconds == engine.seconds == repeated.fixed_s("draft", 4)


DISTURBED = ("neighbours", "slow first rounds", "cache of a slower machine", "neither cache nor profile")


@pytest.mark.parametrize("family", DISTURBED)
def test_policy_ends_every_row_of_a_disturbed_machine(family: str) -> None:
    chosen = scenario(family)
    runs = SimulatedRuns(chosen, warm_up=50)
    ended: list[int] = []
    policy = Goodput(k=5, proposers=chosen.proposers)
    engine = runs.run_policy(policy, lambda step: ended.extend(row.request.seed for row in step.completions))
    assert sorted(ended) == list(range(len(chosen.output)))
    assert 0 < runs.warm_up_s < engine.seconds


def test_start_profile_of_a_busy_cpu_has_slow_plain_rounds_only() -> None:
    chosen = scenario("cache of one slow round")
    profile = start_profile(chosen)
    assert profile.rounds
    for point in profile.rounds:
        usual = chosen.machine.seconds("none", 0, int(point.running), point.context)
        assert point.k == 0 and point.seconds / point.rounds > 5 * usual


SMALL = """
seed: 3
max_k: 2
machines:
  m: {verify: [[1, 0.01], [64, 0.02]], draft: [[1, 0.001], [64, 0.002]], kv: 0, draft_kv: 0, draft_prefill: 0,
    draft_forward: 0, ngram: [0, 0]}
datasets:
  d: {draft: [0.5], ngram: [0.5], coverage: 1, input: [3, 9], output: [300, 400]}
families:
  mine: {count: 2, machines: [m], slots: 2, shards: 1, datasets: [[d]]}
"""


def test_bench_policy_accepts_a_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(SMALL)
    result = CliRunner().invoke(main, ["bench", "policy", "--scenarios", str(path), "--limit", "1", "--json"])
    assert result.exit_code == 0, result.output
    (line,) = result.output.splitlines()
    found = json.loads(line)
    assert found["family"] == "mine" and found["rounds"] >= 150 and found["policy_s"] > 0
    table = CliRunner().invoke(main, ["bench", "policy", "--scenarios", str(path), "--limit", "1"]).output
    assert "over the oracle" in table and table.splitlines()[-1].startswith("all")
    held_out = CliRunner().invoke(main, ["bench", "policy", "--scenarios", str(path), "--count", "1", "--held-out"])
    assert held_out.output.startswith("seed ") and held_out.output.splitlines()[-1].split()[1] == "1"
    both = CliRunner().invoke(main, ["bench", "policy", "--seed", "1", "--held-out"])
    assert both.exit_code == 2 and "expected one of them" in both.output
    unknown = CliRunner().invoke(main, ["bench", "policy", "--scenarios", str(path), "--family", "yours"])
    assert unknown.exit_code and "expected some of: mine" in unknown.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("families:", "family:"), "'families' is missing"),
        (("machines: [m]", "machines: [x]"), "'x' is missing"),
        (("verify: [[1, 0.01], [64, 0.02]]", "verify: fast"), "could not convert"),
        (("seed: 3", "seed: [3"), "not a valid scenario file"),
    ],
)
def test_invalid_scenario_file_is_an_error_with_its_reason(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(JobError, match=r"own\.yaml is not a valid scenario file") as error:
        load_scenarios(str(path))
    assert message in str(error.value)


def test_missing_scenario_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"nowhere\.yaml cannot be read"):
        load_scenarios(str(tmp_path / "nowhere.yaml"))
