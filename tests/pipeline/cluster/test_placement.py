"""Tests of placement: workers and CPUs by job, machine and cluster."""

import socket
import time
from pathlib import Path

import pytest
import ray
from support.fake_workers import make_job

from specpipe.errors import MachineError
from specpipe.pipeline.cluster.backend import RayBackend
from specpipe.pipeline.cluster.placement import place
from specpipe.pipeline.cluster.ray_cluster import connected


@pytest.mark.parametrize(
    ("overrides", "cpus", "gpus", "expected"),
    [
        ((), 8, 0, (1, "cpu", 8.0)),
        (("workers.count=3",), 8, 0, (3, "cpu", 2.0)),
        (("workers.count=3",), 2, 0, (3, "cpu", 2 / 3)),
        ((), 64, 4, (4, "cuda", 1.0)),
        (("workers.count=2",), 64, 4, (2, "cuda", 1.0)),
        (("model.device=cpu",), 64, 4, (1, "cpu", 64.0)),
        (("workers.cpus_per_worker=6",), 64, 8, (8, "cuda", 6.0)),
    ],
)
def test_auto_placement_follows_the_machine(tmp_path: Path, overrides, cpus, gpus, expected) -> None:
    placement = place(make_job(tmp_path, *overrides), cpus=cpus, gpus=gpus, elastic=False)
    assert (placement.workers, placement.device) == expected[:2]
    assert placement.cpus == pytest.approx(expected[2])
    assert placement.threads >= 1


@pytest.mark.parametrize(
    ("machines", "workers", "expected"),
    [([1, 2], 1, 2), ([1, 2], 2, 1), ([3, 5], 2, 3), ([8, 8], 3, 4), ([0, 16], 1, 16), ([1, 1], 3, 2 / 3)],
)
def test_worker_requests_no_more_cpus_than_one_machine_has(tmp_path: Path, machines, workers, expected) -> None:
    job = make_job(tmp_path, f"workers.count={workers}")
    placement = place(job, cpus=sum(machines), gpus=0, elastic=True, machines=machines)
    assert placement.cpus == pytest.approx(expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.device=cuda",), "Ray sees no GPU"),
        (("workers.cpus_per_worker=5",), "need more than the 4"),
    ],
)
def test_requests_beyond_the_machine_are_refused(tmp_path: Path, overrides, message) -> None:
    with pytest.raises(MachineError, match=message):
        place(make_job(tmp_path, *overrides), cpus=4, gpus=0, elastic=False)


def test_more_workers_than_gpus_need_an_elastic_cluster(tmp_path: Path) -> None:
    job = make_job(tmp_path, "workers.count=9")
    with pytest.raises(MachineError, match=r"workers\.count is 9 and this machine has 2"):
        place(job, cpus=64, gpus=2, elastic=False)
    assert place(job, cpus=64, gpus=2, elastic=True).workers == 9


def test_unreachable_cluster_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests may have one running in this process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
        began = time.monotonic()
        with (
            pytest.raises(MachineError, match=r"RAY_ADDRESS=127\.0\.0\.1:"),
            connected(make_job(tmp_path), verbose=False),
        ):
            pass
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("count", "cpus", "gpus", "elastic", "expected"),
    [
        ("{max: 8}", 64, 4, False, 4),
        ("{min: 2, max: 3}", 64, 4, False, 3),
        ("{min: 2, max: 8}", 64, 4, True, 8),
        ("{min: 4, max: 8}", 64, 4, False, 4),
        ("{max: 3}", 8, 0, False, 3),
        ("{max: 30}", 8, 0, False, 8),
    ],
)
def test_worker_range_takes_what_the_cluster_has(tmp_path: Path, count, cpus, gpus, elastic, expected) -> None:
    job = make_job(tmp_path, f"workers.count={count}")
    assert place(job, cpus=cpus, gpus=gpus, elastic=elastic).workers == expected


@pytest.mark.parametrize(("gpus", "elastic"), [(2, False), (2, True), (0, True)])
def test_too_little_room_for_a_worker_range_is_refused(tmp_path: Path, gpus: int, elastic: bool) -> None:
    job = make_job(tmp_path, "workers.count={min: 3, max: 8}", "model.device=cuda")
    with pytest.raises(MachineError, match=rf"workers\.count\.min is 3 and there is room for {gpus} GPU"):
        place(job, cpus=64, gpus=gpus, elastic=elastic)


def test_start_says_which_ray_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RayBackend().waits_for == "starting Ray on this machine, some seconds"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert RayBackend().waits_for == "joining the Ray cluster head:6379"
