"""Tuning between two shards: a new plan every few rounds, returned only if it changed."""

import dataclasses
from collections.abc import Callable

from specpipe.core import AcceptanceCounts, Completion, Request, SamplingParams, ShardRound, SpeculationPlan, StepReport
from specpipe.speculation.estimates.observer import Observer
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.policy import REPLAN_ROUNDS
from specpipe.speculation.tuner import Tuner

ALL_ACCEPTED = AcceptanceCounts(
    drafts=3, draft_tokens=3, accepted_tokens=3, reached_per_position=(3,), accepted_per_position=(3,)
)


class Recording:
    """Policy that records its inputs."""

    max_k = 3

    def __init__(self, k: Callable[[PolicyInputs], int] = lambda inputs: 1) -> None:
        self.inputs: list[PolicyInputs] = []
        self._k = k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        self.inputs.append(inputs)
        k = self._k(inputs)
        return SpeculationPlan(ks=(k,), proposer="draft", queue_depth=inputs.queue_depth, reason=f"K={k}")


def step(k: int = 1, ended: int = 0) -> StepReport:
    request = Request(
        request_id="", shard=0, row=0, prompt="", prompt_token_ids=(1,), sampling=SamplingParams(), seed=0
    )
    return StepReport(
        k=k, proposer="draft", running=3, waiting=0, slots=4, seconds=0.1, round_s=0.1,
        shards={0: ShardRound(rows=3, verified=ALL_ACCEPTED)},
        completions=(Completion(request=request, token_ids=(1, 2), finish_reason="length"),) * ended,
    )  # fmt: skip


def tuner(policy: Recording | Fixed) -> Tuner:
    made = Tuner(policy, slots=4, proposers=("draft",))
    made._next = -1.0
    return made


def ordered(depth: float = 40.0) -> SpeculationPlan:
    return SpeculationPlan(ks=(0,), proposer="none", queue_depth=depth, reason="the driver's")


def rounds(tuned: Tuner, count: int) -> list[SpeculationPlan]:
    found = []
    for _ in range(count):
        tuned._next = -1.0  # as if making a plan took no time
        if (plan := tuned.step(step())) is not None:
            found.append(plan)
    return found


def test_evidence_changes_the_plan_between_two_shards() -> None:
    policy = Recording(lambda inputs: 3 if inputs.acceptance["draft"].weights[0] > 50 else 1)
    tuned = tuner(policy)
    assert tuned.order(ordered(), None).ks == (1,)
    plans = rounds(tuned, 4 * REPLAN_ROUNDS)
    assert [plan.ks for plan in plans] == [(3,)], "returned once"
    assert len(policy.inputs) == 1 + 5 + 3, "after 1, 2, 4, 8 and 16 rounds, then every 16"


def test_ended_rows_lower_queue_depth_until_the_next_order() -> None:
    policy = Recording()
    tuned = tuner(policy)
    tuned.order(ordered(depth=40.0), None)
    for _ in range(REPLAN_ROUNDS):
        tuned._next = -1.0
        tuned.step(step(ended=2))
    ended = [0, 2, 4, 8, 16, 32]
    assert [inputs.queue_depth for inputs in policy.inputs] == [40.0 - rows for rows in ended]
    tuned.order(ordered(depth=25.0), None)
    assert policy.inputs[-1].queue_depth == 25.0


def test_prompts_of_new_rows_are_missing_in_the_draft_when_a_shard_arrives() -> None:
    policy = Recording()
    tuned = tuner(policy)
    tuned.order(ordered(), None)
    rounds(tuned, REPLAN_ROUNDS)
    tuned.order(ordered(), None)
    running, ordered_again = policy.inputs[-2:]
    assert (running.running, running.behind) == (3, 0.0)
    assert (ordered_again.running, ordered_again.behind) == (4, running.input_tokens / 4)


def test_worker_starts_with_the_priors_of_the_run() -> None:
    others = Observer(slots=4, proposers=("draft",))
    log = tuner(Recording())
    rounds(log, 200)
    others.add(log.evidence())
    policy = Recording()
    tuner(policy).order(ordered(), others.inputs)
    (inputs,) = policy.inputs
    assert inputs.acceptance["draft"].conditional(1)[0] > 0.95
    assert inputs.costs


def test_evidence_for_the_driver_is_returned_once() -> None:
    tuned = tuner(Recording())
    tuned.order(ordered(), None)
    rounds(tuned, 40)
    assert tuned.evidence().verified["draft"].drafts == 3 * 40
    assert tuned.evidence().verified == {}


def test_planning_time_is_limited_to_a_small_share() -> None:
    policy = Recording()
    tuned = Tuner(policy, slots=4, proposers=("draft",))
    tuned.order(ordered(), None)
    tuned._next = float("inf")  # as if the last plan had taken long
    for _ in range(10 * REPLAN_ROUNDS):
        assert tuned.step(step()) is None
    assert len(policy.inputs) == 1


def test_unchanged_plan_is_not_returned_again() -> None:
    tuned = tuner(Fixed(k=2, proposer="draft"))
    assert tuned.order(ordered(), None).ks == (2,)
    assert rounds(tuned, 100) == []


def test_plan_is_reviewed_soon_after_the_proposer_changed() -> None:
    policy = Recording()
    tuned = tuner(policy)
    tuned.order(ordered(), None)
    rounds(tuned, 20)
    planned = len(policy.inputs)
    tuned._next = -1.0
    tuned.step(dataclasses.replace(step(), proposer="ngram"))
    assert len(policy.inputs) == planned + 1, "four rounds after the last plan"
