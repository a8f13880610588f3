"""Estimates of a run: acceptance of all workers, costs by hardware, earlier starts included."""

from specpipe.core import AcceptanceCounts, CostPoint, Evidence, Profile
from specpipe.pipeline.messages import WorkerInfo
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.estimates.round_model import RoundWork
from specpipe.speculation.estimates.run_estimates import RunEstimates

COUNTS = AcceptanceCounts(drafts=100, reached_per_position=(100,), accepted_per_position=(20,))


def point(seconds: float, rounds: int = 50) -> CostPoint:
    return CostPoint(proposer="none", k=0, running=4, context=100, rounds=rounds, seconds=rounds * seconds)


def seconds(estimates: RunEstimates, worker: str) -> float:
    return estimates.policy_inputs(worker, queue_depth=1.0).costs.seconds(RoundWork("none", 0, 4, 400))


def test_costs_are_shared_by_hardware() -> None:
    estimates = RunEstimates(slots=4, proposers=("draft",))
    for worker, hardware in (("a", "H200"), ("b", "L4"), ("c", "H200")):
        estimates.admit(worker, hardware, Profile())
    assert not estimates.policy_inputs("a", queue_depth=1.0).costs
    estimates.add("a", Evidence(costs=(point(0.1),)))
    estimates.add("b", Evidence(costs=(point(0.4),)))
    assert seconds(estimates, "a") == seconds(estimates, "c")
    assert 3.5 < seconds(estimates, "b") / seconds(estimates, "c") < 4.5
    assert estimates.policy_inputs("c").costs is estimates.costs["H200"]


def test_acceptance_is_shared_by_all_workers() -> None:
    estimates = RunEstimates(slots=4, proposers=("draft",))
    estimates.admit("a", "H200", Profile())
    estimates.add("a", Evidence(verified={"draft": COUNTS}))
    assert estimates.policy_inputs("later worker").acceptance["draft"].conditional(1)[0] < 0.3


def test_start_up_profile_adds_costs() -> None:
    estimates = RunEstimates(slots=4, proposers=("draft",))
    estimates.admit("a", "H200", Profile(rounds=(point(0.2, rounds=5),)))
    assert 0.15 < seconds(estimates, "a") < 0.25
    assert (estimates.costs["H200"].rounds, estimates.costs["H200"].confirmed) == (1, {})


def test_cached_costs_are_loaded_once_by_hardware() -> None:
    loaded: list[str] = []

    def known(hardware: str) -> RoundCosts:
        loaded.append(hardware)
        return RoundCosts().with_points([point(0.3)])

    estimates = RunEstimates(slots=4, proposers=("draft",), cached_costs=known)
    estimates.admit("a", "H200", Profile())
    estimates.admit("b", "H200", Profile())
    assert 0.25 < seconds(estimates, "b") < 0.35
    assert loaded == ["H200"]


def test_shards_of_earlier_starts_add_acceptance() -> None:
    estimates = RunEstimates(slots=4, proposers=("draft",))
    estimates.add(None, Evidence(verified={"draft": COUNTS}))
    assert estimates.policy_inputs("a", queue_depth=1.0).acceptance["draft"].conditional(1)[0] < 0.3


def test_cpus_of_two_hosts_are_different_hardware() -> None:
    def hardware(device: str, host: str) -> str:
        return WorkerInfo(facts={"device": device, "host": host}).hardware

    assert hardware("cpu, 2 threads", "a") != hardware("cpu, 2 threads", "b")
    assert hardware("NVIDIA H200", "a") == hardware("NVIDIA H200", "b")
