import pytest

from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.queue_threshold import QueueThreshold


def inputs(slots: int = 8, queue_depth: float = 12.5) -> PolicyInputs:
    return PolicyInputs(slots=slots, queue_depth=queue_depth, acceptance={})


@pytest.mark.parametrize(("threshold", "slots"), [(0, 8), (1, 8), (7, 8), (8, 8), (9, 8), (10**9, 3)])
def test_queue_threshold_speculates_up_to_its_threshold(threshold: int, slots: int) -> None:
    plan = QueueThreshold(k=5, threshold=threshold, proposer="draft").plan(inputs(slots))
    for running in range(1, slots + 1):
        assert plan.k_for(running) == (5 if running <= threshold else 0), running
    assert len(plan.ks) <= slots + 2


def test_queue_threshold_for_new_rows_keeps_k() -> None:
    plan = QueueThreshold(k=5, threshold=3, proposer="ngram", applies_to="new").plan(inputs())
    assert (plan.ks, plan.proposer, plan.new_rows_limit) == ((5,), "ngram", 3)
    assert "start while at most 3 run" in plan.reason
    assert QueueThreshold(k=5, threshold=3, proposer="ngram").plan(inputs()).new_rows_limit is None


def test_fixed_k_of_0_never_speculates() -> None:
    plan = Fixed().plan(inputs())
    assert (plan.max_k, plan.proposer, plan.reason, Fixed().max_k) == (0, "none", "off", 0)


def test_fixed_k_does_not_depend_on_load() -> None:
    plan = Fixed(k=4, proposer="ngram").plan(inputs())
    assert {plan.k_for(running) for running in range(100)} == {4}
    assert plan.proposer == "ngram"


def test_every_plan_has_queue_depth_and_reason() -> None:
    for policy in (Fixed(), Fixed(k=2, proposer="draft"), QueueThreshold(k=2, threshold=3, proposer="draft")):
        plan = policy.plan(inputs(queue_depth=7.25))
        assert plan.queue_depth == 7.25
        assert plan.reason
        assert plan.max_k <= policy.max_k
