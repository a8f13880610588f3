"""Between two shards the worker's own tuner goes on: a new plan every few rounds, and only where something changed."""

from collections.abc import Callable
from dataclasses import replace

from specpipe.core import AcceptanceCounts, Completion, Request, SamplingParams, ShardRound, SpeculationPlan, StepReport
from specpipe.speculation.estimates.observer import Observer, Priors
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.tuner import REPLAN_ROUNDS, Tuner

ALL_ACCEPTED = AcceptanceCounts(
    drafts=3, draft_tokens=3, accepted_tokens=3, reached_per_position=(3,), accepted_per_position=(3,)
)


class Recording:
    """A policy that remembers what it was shown."""

    max_k = 3

    def __init__(self, k: Callable[[PolicyInputs], int] = lambda inputs: 1) -> None:
        self.situations: list[PolicyInputs] = []
        self._k = k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        self.situations.append(inputs)
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


def test_what_rounds_show_changes_the_plan_between_two_shards() -> None:
    policy = Recording(lambda inputs: 3 if inputs.acceptance["draft"].drafts > 50 else 1)
    tuned = tuner(policy)
    assert tuned.order(ordered(), Priors()).ks == (1,)
    plans = rounds(tuned, 4 * REPLAN_ROUNDS)
    assert [plan.ks for plan in plans] == [(3,)], "told once"
    assert len(policy.situations) == 1 + 5 + 3, "after 1, 2, 4, 8 and 16 rounds, then every 16"


def test_rows_that_end_lower_the_queue_depth_until_the_driver_says_more() -> None:
    policy = Recording()
    tuned = tuner(policy)
    tuned.order(ordered(depth=40.0), Priors())
    for _ in range(REPLAN_ROUNDS):
        tuned._next = -1.0
        tuned.step(step(ended=2))
    ended = [0, 2, 4, 8, 16, 32]
    assert [inputs.queue_depth for inputs in policy.situations] == [40.0 - rows for rows in ended]
    tuned.order(ordered(depth=25.0), Priors())
    assert policy.situations[-1].queue_depth == 25.0


def test_the_plan_in_force_is_part_of_what_the_policy_sees() -> None:
    policy = Recording()
    tuned = tuner(policy)
    first = tuned.order(ordered(), Priors())
    rounds(tuned, 1)
    assert [inputs.plan for inputs in policy.situations] == [None, first]


def test_a_plan_that_was_made_for_other_rows_is_not_in_force() -> None:
    policy = Recording()
    tuned = tuner(policy)
    tuned.order(ordered(), Priors())
    rounds(tuned, 1)
    tuned.order(ordered(), Priors())  # a quarter of the rows is new
    assert policy.situations[-1].plan is not None
    tuned._observer.priors = replace(tuned._observer.priors, running=0)
    tuned.order(ordered(), Priors())
    assert policy.situations[-1].plan is None


def test_a_worker_starts_from_what_the_run_has_learnt() -> None:
    others = Observer(slots=4, proposers=("draft",))
    log = tuner(Recording())
    rounds(log, 200)
    others.see(log.evidence())
    policy = Recording()
    tuner(policy).order(ordered(), others.priors)
    (inputs,) = policy.situations
    assert inputs.acceptance["draft"].conditional(1)[0] > 0.95
    assert inputs.costs is not None


def test_the_driver_hears_everything_once() -> None:
    tuned = tuner(Recording())
    tuned.order(ordered(), Priors())
    rounds(tuned, 40)
    assert tuned.evidence().rounds == {"draft": 40}
    assert tuned.evidence().rounds == {}


def test_making_plans_takes_a_small_share_of_the_time() -> None:
    policy = Recording()
    tuned = Tuner(policy, slots=4, proposers=("draft",))
    tuned.order(ordered(), Priors())
    tuned._next = float("inf")  # as if the last plan had taken long
    for _ in range(10 * REPLAN_ROUNDS):
        assert tuned.step(step()) is None
    assert len(policy.situations) == 1


def test_a_policy_that_never_changes_its_mind_says_nothing_new() -> None:
    tuned = tuner(Fixed(k=2, proposer="draft"))
    assert tuned.order(ordered(), Priors()).ks == (2,)
    assert rounds(tuned, 100) == []
