"""The simulated engine keeps what a real engine promises: rows end once, tokens and seconds add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specpipe.core import AcceptanceCounts, EngineConfig, ProposerName, SpeculationPlan, StepReport
from specpipe.simulator.draws import Draws
from specpipe.simulator.engine import SimulatedEngine
from specpipe.simulator.measurement import Measurement
from specpipe.simulator.scenarios import Scenario, load_scenarios

FEW_ROWS = next(s for s in load_scenarios() if s.family == "draft or n-grams" and s.slots == 16)


def small(rows: int = 40, **changes: object) -> Scenario:
    """Returns the first rows of a scenario with the draft model and n-grams."""
    cut = {name: getattr(FEW_ROWS, name)[:rows] for name in ("shard", "kind", "input", "output")}
    return replace(FEW_ROWS, **cut, **changes)


def plan(k: int, proposer: ProposerName = "draft") -> SpeculationPlan:
    return SpeculationPlan(ks=(k,), proposer=proposer, queue_depth=0.0, reason="test")


def engine_of(scenario: Scenario) -> SimulatedEngine:
    return SimulatedEngine(scenario, Draws(scenario), Measurement(scenario))


def play(engine: SimulatedEngine, *, check: bool = False) -> list[StepReport]:
    steps = []
    while (step := engine.step()) is not None:
        if check:
            engine.check_integrity()
        steps.append(step)
    return steps


def submitted(scenario: Scenario, first: SpeculationPlan) -> SimulatedEngine:
    engine = engine_of(scenario)
    for shard in scenario.requests():
        engine.submit(shard, first)
    return engine


@pytest.mark.parametrize(("k", "proposer"), [(0, "draft"), (2, "draft"), (5, "ngram")])
def test_every_row_ends_once_with_all_its_tokens(k: int, proposer: ProposerName) -> None:
    scenario = small()
    engine = submitted(scenario, plan(k, proposer))
    steps = play(engine, check=True)
    ended = [row for step in steps for row in step.completions]
    assert sorted(row.request.seed for row in ended) == list(range(len(scenario.output)))
    assert all(len(row.token_ids) == scenario.output[row.request.seed] for row in ended)
    emitted = sum(part.emitted_tokens for step in steps for part in step.shards.values())
    assert emitted == scenario.output.sum()
    prefilled = sum(part.prefill_tokens for step in steps for part in step.shards.values())
    assert prefilled == (scenario.input - 1).sum()
    assert engine.running == engine.waiting == engine.kv_pages_used == 0
    assert {(step.k, step.proposer) for step in steps if step.running} <= {(k, proposer if k else "none"), (0, "none")}


def test_seconds_equal_the_sum_over_rounds_of_an_undisturbed_machine() -> None:
    scenario = small()
    engine = submitted(scenario, plan(3))
    steps = play(engine)
    machine = scenario.machine
    rounds = [machine.seconds(step.proposer, step.k, step.running, step.context) for step in steps if step.running]
    prefills = [machine.prefill_s(step.draft_prefill_tokens, 1.0) for step in steps if step.draft_prefill_tokens]
    assert engine.seconds == pytest.approx(sum(rounds) + sum(prefills))
    assert engine.rounds == len(rounds)
    measured = [step.round_s for step in steps if step.running]
    assert sum(measured) == pytest.approx(sum(rounds), rel=0.03)
    assert max(abs(m / r - 1) for m, r in zip(measured, rounds, strict=True)) > 0.01


def test_long_prompts_leave_no_slot_empty() -> None:
    long = next(s for s in load_scenarios() if s.family == "long prompts" and s.slots == 64)
    step = submitted(long, plan(3)).step()
    assert step is not None and step.running == 64
    assert step.draft_prefill_tokens == (long.input[:64] - 1).sum() > EngineConfig().prefill_budget


def test_rows_get_drafts_only_after_catching_up() -> None:
    scenario = replace(small(), prefill_budget=EngineConfig().prefill_budget)
    engine = submitted(scenario, plan(0))
    for _ in range(30):
        engine.step()
    engine.submit([], plan(2))
    step = engine.step()
    assert step is not None and 0 < step.draft_prefill_tokens <= scenario.prefill_budget
    counts = sum((part.verified for part in step.shards.values()), AcceptanceCounts())
    assert 0 < counts.drafts < step.running


def test_measured_acceptance_equals_that_of_the_dataset() -> None:
    middle = next(s for s in load_scenarios() if s.family == "draining queue" and s.slots == 256)
    steps = play(submitted(middle, plan(3)))
    counts = sum((part.verified for step in steps for part in step.shards.values()), AcceptanceCounts())
    assert counts.conditional == pytest.approx(middle.accepts["draft"][0, :3], abs=0.02)
    assert counts.recovered_tokens + counts.bonus_tokens == counts.drafts


def test_neighbours_and_first_rounds_change_measured_seconds_only() -> None:
    quiet = small(rows=200)
    busy, slow = replace(quiet, neighbours=True), replace(quiet, slow_first_rounds=True)
    runs = []
    for scenario in (quiet, busy, slow):
        engine = submitted(scenario, plan(2))
        measured = [step.round_s for step in play(engine) if step.running]
        runs.append((engine.seconds, measured))
    (quiet_s, base), (busy_s, doubled), (slow_s, first) = runs
    assert 0 < quiet_s == busy_s == slow_s
    ratios = np.array(doubled) / base
    assert 0.1 < np.mean(ratios > 1.5) < 0.6 and ratios.min() == pytest.approx(1)
    assert first[0] == pytest.approx(10 * base[0])
    assert np.mean(np.array(first) > 9 * np.array(base)) < 0.1
