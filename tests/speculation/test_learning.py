"""What a run has learnt: acceptance of all workers in one place, costs by hardware, earlier starts included."""

from specpipe.core import AcceptanceCounts, CostPoint, Evidence, Profile
from specpipe.pipeline.handles import WorkerInfo
from specpipe.speculation.cost import CostTable
from specpipe.speculation.learning import Learning

COUNTS = AcceptanceCounts(drafts=100, reached_per_position=(100,), accepted_per_position=(20,))


def point(seconds: float, rounds: int = 50) -> CostPoint:
    return CostPoint(proposer="none", k=0, running=4, context=100, rounds=rounds, seconds=rounds * seconds)


def seconds(learning: Learning, worker: str) -> float:
    costs = learning.situation(worker, queue_depth=1.0).costs
    assert costs is not None
    return costs.seconds(proposer="none", k=0, running=4, context=100)


def test_costs_are_shared_by_workers_of_the_same_hardware_and_no_others() -> None:
    learning = Learning(slots=4, proposers=("draft",))
    for worker, hardware in (("a", "H200"), ("b", "L4"), ("c", "H200")):
        learning.admit(worker, hardware, Profile())
    assert learning.situation("a", queue_depth=1.0).costs is None
    learning.see("a", Evidence(costs=(point(0.1),)))
    learning.see("b", Evidence(costs=(point(0.4),)))
    assert seconds(learning, "a") == seconds(learning, "c")
    assert 3.5 < seconds(learning, "b") / seconds(learning, "c") < 4.5
    assert learning.beliefs("c").costs == learning.tables["H200"]


def test_acceptance_is_shared_by_all() -> None:
    learning = Learning(slots=4, proposers=("draft",))
    learning.admit("a", "H200", Profile())
    learning.see("a", Evidence(verified={"draft": COUNTS}, rounds={"draft": 30}, row_rounds={"draft": 100}))
    assert learning.beliefs("worker of tomorrow").acceptance["draft"].conditional(1)[0] < 0.3


def test_the_profile_of_a_start_counts_as_rounds_do() -> None:
    learning = Learning(slots=4, proposers=("draft",))
    learning.admit("a", "H200", Profile(rounds=(point(0.2, rounds=5),)))
    assert 0.15 < seconds(learning, "a") < 0.25


def test_earlier_runs_on_the_same_hardware_are_remembered() -> None:
    asked: list[str] = []

    def known(hardware: str) -> CostTable:
        asked.append(hardware)
        return CostTable([point(0.3)])

    learning = Learning(slots=4, proposers=("draft",), known=known)
    learning.admit("a", "H200", Profile())
    learning.admit("b", "H200", Profile())
    assert 0.25 < seconds(learning, "b") < 0.35
    assert asked == ["H200"]


def test_shards_of_earlier_starts_teach_acceptance() -> None:
    learning = Learning(slots=4, proposers=("draft",))
    learning.see(None, Evidence(verified={"draft": COUNTS}, rounds={"draft": 30}, row_rounds={"draft": 100}))
    assert learning.situation("a", queue_depth=1.0).acceptance["draft"].conditional(1)[0] < 0.3


def test_cpus_of_two_machines_are_two_kinds_of_hardware() -> None:
    def hardware(device: str, host: str) -> str:
        return WorkerInfo(facts={"device": device, "host": host}).hardware

    assert hardware("cpu, 2 threads", "a") != hardware("cpu, 2 threads", "b")
    assert hardware("NVIDIA H200", "a") == hardware("NVIDIA H200", "b")
